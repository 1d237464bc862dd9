"""The S3 server, for a collection in a bucket."""

from tests.support.s3 import s3_server

__all__ = ["s3_server"]
