"""The prompts of the live engine tests, written for them; the last ones are longer than one prefill chunk."""

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a small blue fish who",
    "def add(a, b):\n    return",
    "Water boils at one hundred degrees, and it freezes at",
    "List the numbers from one to ten: 1, 2, 3,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "Q: What is two plus two?\nA:",
    "My favourite season is autumn because",
    "In the kitchen, first wash the rice; then",
    "A letter to a friend:\n\nDear Tom,\n\n",
    "The train left at nine. The train stopped at ten. The train left at eleven. The train stopped at noon. "
    "The train left at one. The train stopped at two. The train left at three. The train stopped at four. "
    "The train left at five. The train stopped at six. The train left at",
    "Here is a plan for a garden. In spring we dig the beds, sow peas and lettuce, and mend the fence. In summer we "
    "water every evening, pick beans, and sit in the shade of the pear tree. In autumn we gather apples, rake the "
    "leaves into heaps, and plant tulips for the next year. In winter we",
)
