"""What a client or a model says reaches a log as text."""

from __future__ import annotations

import io
import logging

from onnxfold.serving.plain_logs import plain_logs

EVIL = "\x1b[2J\nok\r\u202e"


def test_no_log_holds_what_a_terminal_obeys() -> None:
    stream = io.StringIO()
    logger = logging.getLogger("onnxfold.test_plain_logs")
    logger.propagate = False
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    usual = logging.getLogRecordFactory()
    try:
        with plain_logs():
            logger.error("no model %s, %d", EVIL, 3)
            logger.error(ValueError(EVIL))
            try:
                raise KeyError(EVIL) from ValueError(EVIL)
            except KeyError as error:
                logger.exception(error)
                logger.error("told", exc_info=True)
    finally:
        logger.removeHandler(handler)
    said = stream.getvalue()
    assert all(c.isprintable() or c == "\n" for c in said)
    assert said.startswith("ERROR no model \\x1b[2J\\nok\\r\\u202e, 3\nERROR \\x1b[2J")
    assert said.count("Traceback (most recent call last)") == 2
    assert logging.getLogRecordFactory() is usual
