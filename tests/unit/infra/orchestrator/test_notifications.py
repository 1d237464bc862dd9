"""Which automations `notify` asks for: one cause of a run is one message to a block, whichever rules name it."""

from __future__ import annotations

import socketserver
import threading
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from data_contracts.errors import SpecError
from data_contracts.pipeline_spec.operations import NotifyRule
from infra.orchestrator import automations
from infra.orchestrator.automations import find_blocks, notify_triggers, tell_people

TEAM, PAGER = "slack-webhook/team", "webhook/pager"


class Server:
    """Blocks and automations of a Prefect server, as its client shows them; pages of two."""

    api_url = "http://here/api"

    def __init__(self, *blocks: str) -> None:
        self.blocks = [self._block(name) for name in blocks]
        self.automations: list[Any] = []

    @staticmethod
    def _block(name: str) -> Any:
        kind, _, own = name.partition("/")
        capabilities = [] if kind in ("secret", "webhook") else ["notify"]
        types = {"block_type": SimpleNamespace(slug=kind), "block_schema": SimpleNamespace(capabilities=capabilities)}
        return SimpleNamespace(name=own, id=uuid4(), **types)

    def read_block_documents(self, offset: int, include_secrets: bool) -> list[Any]:
        assert not include_secrets
        return self.blocks[offset : offset + 2]

    def read_automations(self, automations: Any, offset: int) -> list[Any]:
        wanted = automations.tags.all_
        return [one for one in self.automations if set(wanted) <= set(one.tags)][offset : offset + 2]

    def create_automation(self, automation: Any) -> None:
        self.automations.append(SimpleNamespace(**{**dict(automation), "id": uuid4()}))

    def update_automation(self, id: Any, automation: Any) -> None:
        [one] = [one for one in self.automations if one.id == id]
        vars(one).update(dict(automation))

    def delete_automation(self, id: Any) -> None:
        self.automations = [one for one in self.automations if one.id != id]


def rule(block: str, *causes: Any) -> NotifyRule:
    return NotifyRule(on=list(causes), block=block)


def told(server: Server, *rules: NotifyRule, pipeline: str = "sales") -> list[str]:
    client = cast("Any", server)
    return tell_people(client, pipeline, f"{pipeline}@champion", rules, find_blocks(client, rules))


def test_two_rules_of_one_block_are_one_automation() -> None:
    server = Server(TEAM, "secret/key", PAGER)
    names = told(server, rule(TEAM, "failed"), rule(PAGER, "budget"), rule(TEAM, "hung", "not_resumed"))
    assert names == [f"trainwright: sales: {TEAM}: runs", f"trainwright: sales: {PAGER}: budget"]
    runs = next(one for one in server.automations if one.name == names[0])
    assert {event.rpartition(".")[2] for event in runs.trigger.expect} == {"failed", "hung", "not_resumed"}
    assert [one.actions[0].type for one in server.automations if one.name == names[1]] == ["call-webhook"]


def test_automations_follow_the_spec_and_leave_others_alone() -> None:
    server = Server(TEAM, PAGER)
    told(server, rule(TEAM, "failed", "rolled_back"), rule(PAGER, "drift"))
    told(server, rule(TEAM, "failed"), pipeline="other")
    mine = SimpleNamespace(name="mine", tags=["trainwright-notify:sales"], id=uuid4(), enabled=True)
    server.automations.append(mine)
    first = server.automations[0]
    first.enabled = False  # a person paused it
    server.automations.append(SimpleNamespace(**{**vars(first), "id": uuid4()}))  # another deploy, at once
    told(server, rule(TEAM, "failed", "waiting", "rolled_back"))
    names = sorted(one.name for one in server.automations)
    ours = [f"trainwright: sales: {TEAM}: {kind}" for kind in ("rollbacks", "runs")]
    assert names == ["mine", f"trainwright: other: {TEAM}: runs", *ours]
    assert first.enabled is False
    told(server)
    assert sorted(one.name for one in server.automations) == ["mine", f"trainwright: other: {TEAM}: runs"]


@pytest.mark.parametrize(("blocks", "have"), [([PAGER, "secret/team", TEAM], f"{TEAM}, {PAGER}"), ([], "none that")])
def test_a_block_that_does_not_exist(blocks: list[str], have: str) -> None:
    rules = [rule(TEAM, "failed"), rule("slack-webhook/nobody", "drift")]
    with pytest.raises(SpecError, match=r"notify\.[01]\.block: the Prefect server has no block slack") as caught:
        find_blocks(cast("Any", Server(*blocks)), rules)
    assert have in caught.value.message


def test_who_is_told_of_a_rejection_is_not_told_again_that_drift_caused_it() -> None:
    [alone] = notify_triggers("sales", "sales@champion", frozenset({"drift"}))
    assert "trainwright.rejected" not in alone.match
    [_, both] = notify_triggers("sales", "sales@champion", frozenset({"drift", "rejected"}))
    assert both.match["trainwright.rejected"] == "false"


def test_texts_reach_a_message_as_values_and_never_as_templates() -> None:
    from prefect.server.events.jinja_filters import all_filters
    from prefect.server.utilities.user_templates import register_user_template_filters, render_user_template_sync

    register_user_template_filters(all_filters)
    payload = {"subject": '"{{ 7 * 7 }}"', "body": "{% for x in y %}\n"}
    context = {"event": SimpleNamespace(event="e", payload=payload)}
    assert render_user_template_sync(automations._SUBJECT, context) == payload["subject"]
    assert render_user_template_sync(automations._BODY, context) == payload["body"]


class MailServer(socketserver.TCPServer):
    """Takes one mail, as far as SMTP needs it."""

    lines: list[str]


class _Mail(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._say("220 here")
        in_text = False
        for raw in self.rfile:
            line = raw.decode().rstrip("\r\n")
            cast("MailServer", self.server).lines.append(line)
            if in_text:
                in_text = line != "."
                if not in_text:
                    self._say("250 taken")
            elif line.upper() == "DATA":
                in_text = True
                self._say("354 go on")
            elif line.upper() == "QUIT":
                return self._say("221 bye")
            else:
                self._say("250 ok")
        return None

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


def test_a_mail_goes_by_ones_own_server_as_the_docs_say() -> None:
    from prefect.blocks.notifications import SlackWebhook

    with MailServer(("127.0.0.1", 0), _Mail) as server:
        server.lines = []
        taking = threading.Thread(target=server.handle_request, daemon=True)
        taking.start()
        address = f"mailto://127.0.0.1:{server.server_address[1]}?from=runs@example.org&to=ada@example.org"
        SlackWebhook(url=address).notify("out of memory (exit code 8)", "sales: a run failed")
        taking.join(30)
    assert {"Subject: sales: a run failed", "To: ada@example.org", "out of memory (exit code 8)"} <= set(server.lines)
