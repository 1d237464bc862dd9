"""Native code that digests 16 short messages at once by BLAKE3, generated with LLVM in less than 0.1 s.

Each lane of a vector computes one message, so that there is one instruction for a step of all 16; LLVM divides vectors
into those that the processor has. Numba would compile the same steps for seconds, and its cache needs a folder that can
be written. Source: O'Connor, Aumasson, Neves and Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020),
sections 2.1 to 2.4; a message of one chunk needs no tree.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

LANES = 16
BLOCK_BYTES = 64
CHUNK_BYTES = 1024
# A block is read whole for each lane, even beyond the end of its message.
SPARE_BYTES = CHUNK_BYTES + BLOCK_BYTES
DIGEST_WORDS = 4  # 32-bit words of a digest that are stored: 128 bits
_BLOCK_WORDS = 16
ROUNDS = 7
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8
_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)

_BYTE, _WORD, _LONG = (ir.IntType(bits) for bits in (8, 32, 64))
_VECTOR = ir.VectorType(_WORD, LANES)

Digest = Callable[[int, int, int, int, int], None]


@cache
def native() -> tuple[Digest, Any]:
    """The function, and what keeps its machine code in memory.

    It takes the number of groups of LANES messages and four addresses: of the messages' bytes, with SPARE_BYTES behind
    them; of each message's place there (int64); of its length (int32, 1 to CHUNK_BYTES); and of the digests (uint32, by
    group, word and lane).
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(str(_module()))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * 4)
    return signature(engine.get_function_address("digests")), engine


def _module() -> ir.Module:
    """The function `digests` with a loop over groups, and in it one over the blocks of the longest message."""
    module = ir.Module("blake3")
    takes = [_LONG, _BYTE.as_pointer(), _LONG.as_pointer(), _WORD.as_pointer(), _WORD.as_pointer()]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), takes), "digests")
    groups, data, starts, lengths, out = function.args
    entry, group, block, stored, end = (function.append_basic_block() for _ in range(5))
    build = _Build(entry, ir.Function(module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fshr.v{LANES}i32"))
    state, words = ([build.alloca(_VECTOR) for _ in range(count)] for count in (8, _BLOCK_WORDS))
    build.cbranch(build.icmp_signed(">", groups, _LONG(0)), group, end)

    build.position_at_end(group)
    number = build.phi(_LONG)
    number.add_incoming(_LONG(0), entry)
    first = build.mul(number, _LONG(LANES))
    length = build.vector_at(build.gep(lengths, [first]))
    places = [build.load(build.gep(starts, [build.add(first, _LONG(lane))])) for lane in range(LANES)]
    longest = build.longest(length)
    for word, place in zip(_IV, state, strict=True):
        build.store(_each(word), place)
    build.branch(block)

    build.position_at_end(block)
    at = build.phi(_WORD)
    at.add_incoming(_WORD(0), group)
    messages = [build.gep(data, [build.add(place, build.zext(at, _LONG))]) for place in places]
    build.compress(state, words, messages, at, length)
    following = build.add(at, _WORD(BLOCK_BYTES))
    at.add_incoming(following, build.block)
    build.cbranch(build.icmp_signed("<", following, longest), block, stored)

    build.position_at_end(stored)
    for word in range(DIGEST_WORDS):
        place = build.add(build.mul(number, _LONG(DIGEST_WORDS * LANES)), _LONG(word * LANES))
        build.store(build.load(state[word]), build.bitcast(build.gep(out, [place]), _VECTOR.as_pointer()), align=4)
    following = build.add(number, _LONG(1))
    number.add_incoming(following, stored)
    build.cbranch(build.icmp_signed("<", following, groups), group, end)
    build.position_at_end(end)
    build.ret_void()
    return module


class _Build(ir.IRBuilder):
    """Appends instructions on vectors of words; `shift` is LLVM's function that shifts two words as one."""

    def __init__(self, block: ir.Block, shift: ir.Function) -> None:
        super().__init__(block)
        self._shift = shift

    def compress(
        self, state: Sequence[Any], words: Sequence[Any], messages: Sequence[Any], at: Any, length: Any
    ) -> None:
        """Compress the block at byte `at` of each message into `state`, in lanes whose message has such a block.

        Args:
            words: memory for the block's words.
        """
        left = self.sub(length, self._in_each(at))
        for index, (place, word) in enumerate(zip(words, self._words(messages), strict=True)):
            self.store(self._within(word, left, 4 * index), place)
        before = [self.load(place) for place in state]
        last = self.select(self.icmp_signed("<=", left, _each(BLOCK_BYTES)), _each(_CHUNK_END | _ROOT), _each(0))
        start = self.select(self.icmp_signed("==", at, _WORD(0)), _each(_CHUNK_START), _each(0))
        bytes_left = self._between(left, 0, BLOCK_BYTES)
        mixed = self._rounds(
            [*before, *map(_each, _IV[:4]), _each(0), _each(0), bytes_left, self.or_(last, start)], words
        )
        there = self.icmp_signed(">", left, _each(0))
        for index, place in enumerate(state):
            after = self.xor(mixed[index], mixed[index + 8])
            self.store(self.select(there, after, before[index]), place)

    def vector_at(self, pointer: Any) -> Any:
        """The vector at any address."""
        return self.load(self.bitcast(pointer, _VECTOR.as_pointer()), align=1)

    def longest(self, vector: Any) -> Any:
        """The largest word of a vector."""
        most, *rest = (self.extract_element(vector, _WORD(lane)) for lane in range(LANES))
        for word in rest:
            most = self.select(self.icmp_signed(">", word, most), word, most)
        return most

    def _rounds(self, state: Sequence[Any], words: Sequence[Any]) -> list[Any]:
        """The state after seven rounds. They are a loop: written out, LLVM would need three times as long for them."""
        before, turn, after = self.block, self.append_basic_block(), self.append_basic_block()
        self.branch(turn)
        self.position_at_end(turn)
        number, *phis = [self.phi(type_) for type_ in (_WORD, *[_VECTOR] * len(state))]
        number.add_incoming(_WORD(1), before)
        for phi, value in zip(phis, state, strict=True):
            phi.add_incoming(value, before)
        mixed, block = list(phis), [self.load(place) for place in words]
        for column in range(8):
            # Columns first, then diagonals.
            is_diagonal, first = divmod(column, 4)
            places = [row * 4 + (first + row * is_diagonal) % 4 for row in range(4)]
            self._mix(mixed, places, block[2 * column : 2 * column + 2])
        for place, moved in zip(words, _PERMUTATION, strict=True):
            self.store(block[moved], place)
        following = self.add(number, _WORD(1))
        number.add_incoming(following, turn)
        for phi, value in zip(phis, mixed, strict=True):
            phi.add_incoming(value, turn)
        self.cbranch(self.icmp_signed("<=", following, _WORD(ROUNDS)), turn, after)
        self.position_at_end(after)
        return mixed

    def _mix(self, mixed: list[Any], places: Sequence[int], words: Sequence[Any]) -> None:
        """The function G on four words of the state."""
        a, b, c, d = places
        for word, of_d, of_b in zip(words, (16, 8), (12, 7), strict=True):
            mixed[a] = self.add(self.add(mixed[a], mixed[b]), word)
            mixed[d] = self._rotated(self.xor(mixed[d], mixed[a]), of_d)
            mixed[c] = self.add(mixed[c], mixed[d])
            mixed[b] = self._rotated(self.xor(mixed[b], mixed[c]), of_b)

    def _rotated(self, vector: Any, right: int) -> Any:
        return self.call(self._shift, [vector, vector, _each(right)])

    def _words(self, messages: Sequence[Any]) -> list[Any]:
        """The words of a block of each message: vector i has word i of all of them. This is a transposition."""
        rows = [self.vector_at(message) for message in messages]
        lanes = range(LANES)
        for step in (1, 2, 4, 8):
            # Of each two rows, exchange the words of which only one has `step` in its number.
            upper = ir.Constant(_VECTOR, [lane if not lane & step else LANES + lane - step for lane in lanes])
            lower = ir.Constant(_VECTOR, [lane + step if not lane & step else LANES + lane for lane in lanes])
            for row in lanes:
                if not row & step:
                    both = rows[row], rows[row + step]
                    rows[row], rows[row + step] = (self.shuffle_vector(*both, mask) for mask in (upper, lower))
        return rows

    def _within(self, word: Any, left: Any, before: int) -> Any:
        """A word with zeros behind the message's end, which is `left` bytes behind the block's start."""
        there = self._between(self.sub(left, _each(before)), 0, 4)
        missing = self.mul(self.sub(_each(4), there), _each(8))
        # LLVM does not define a shift by all 32 bits.
        mask = self.lshr(_each(0xFFFFFFFF), self.and_(missing, _each(31)))
        return self.select(self.icmp_signed("==", there, _each(0)), _each(0), self.and_(word, mask))

    def _between(self, vector: Any, least: int, most: int) -> Any:
        vector = self.select(self.icmp_signed("<", vector, _each(least)), _each(least), vector)
        return self.select(self.icmp_signed(">", vector, _each(most)), _each(most), vector)

    def _in_each(self, word: Any) -> Any:
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        first = self.insert_element(nothing, word, _WORD(0))
        return self.shuffle_vector(first, nothing, ir.Constant(_VECTOR, [0] * LANES))


@cache
def _each(word: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [word] * LANES)
