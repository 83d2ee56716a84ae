"""What may be a prompt."""

from octavo.api.prompts import Prompt as PromptType
from octavo.api.prompts import TextPrompt, TokensPrompt

__all__ = ["PromptType", "TextPrompt", "TokensPrompt"]
