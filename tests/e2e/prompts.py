"""Twenty prompts of several kinds and lengths: prose, code, lists, questions, other scripts, a long one."""

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a land far away,",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "List five fruits:\n1.",
    "Q: Why is the sky blue?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, age FROM users WHERE",
    "El perro corre por el parque y",
    "Die Geschichte beginnt an einem kalten",
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\nColour of grass?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "Water boils at 100 degrees Celsius because",
    "import numpy as np\n\ndef softmax(x):",
    "In 1969, the first humans",
    "To make a good cup of tea, you should",
    "The quick brown fox jumps over the lazy dog. " * 20 + "Then",
    "日本の首都は",
    '{\n  "name": "Ada",\n  "age": 36,\n  "languages": [',
    "Machine learning is a field of study that " + "gives computers the ability to learn, and it " * 30,
]
