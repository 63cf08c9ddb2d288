"""Texts with which tokenizers are compared."""

SHORT_TEXTS = (
    "",
    "The quick brown fox jumps over 13 lazy dogs.",
    "  leading, trailing and   repeated spaces \t\n",
    "UPPER lower MiXeD caf\u00e9 cafe\u0301 na\u00efve",
    "don't e-mail a@b.example 3.14 1,000 #tag",
    "\u6771\u4eac \u041c\u043e\u0441\u043a\u0432\u0430 \U0001f642",
    "zzqx unheardofword",
)
"""Texts that tokenizers often treat differently: empty, plain, with spaces, with case and accents
in two Unicode forms, with punctuation, in other scripts, with unknown words."""

LONG_TEXT = "word " * 3_000
"""Text longer than the maximum length of most tokenizers."""
