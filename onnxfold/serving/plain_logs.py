"""Logs in which words of a client or a model are text and never a control sequence."""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onnxfold.errors import printable


@contextmanager
def plain_logs() -> Iterator[None]:
    """Escape invisible characters in every log record for the duration of the block."""
    usual = logging.getLogRecordFactory()

    def plain(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = usual(*arguments, **named)
        record.msg, record.args = printable(record.getMessage()), ()
        if record.exc_info and record.exc_info[1] is not None:
            told = "".join(traceback.format_exception(record.exc_info[1]))
            record.exc_text = printable(told.rstrip(), also="\n")
        return record

    logging.setLogRecordFactory(plain)
    try:
        yield
    finally:
        logging.setLogRecordFactory(usual)
