"""Questions to a chat model: multiple choice by the logits of letters, answers in words by generating them, and ChatCORE."""

from marin.evaluation.chat.scoring import reply_text, score_choices, score_replies, stop_tokens
from marin.evaluation.chat.task import (
    CHATCORE_TASKS,
    ChatCore,
    ChatTask,
    Question,
    TaskScore,
    chat_core,
    choice_question,
)
from marin.evaluation.chat.tasks import PUBLIC_TASKS, public_task, source_of

__all__ = [
    "CHATCORE_TASKS",
    "PUBLIC_TASKS",
    "ChatCore",
    "ChatTask",
    "Question",
    "TaskScore",
    "chat_core",
    "choice_question",
    "public_task",
    "reply_text",
    "score_choices",
    "score_replies",
    "source_of",
    "stop_tokens",
]
