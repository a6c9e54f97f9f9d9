"""Makes tests/data/jieba.json: words of Chinese sentences as jieba segments them. Run once, by hand:

pip install 'jieba==0.42.1'
python tests/make_jieba_golden.py
"""

import json
from pathlib import Path

import jieba

SENTENCES = [
    "我来到北京清华大学",
    "他来到了网易杭研大厦",
    "小明硕士毕业于中国科学院计算所，后在日本京都大学深造。",
    "今天天气很好，我们去公园散步吧！",
    "两个男人正在绿色的田野里奔跑",
]

if __name__ == "__main__":
    golden = {sentence: jieba.lcut(sentence) for sentence in SENTENCES}
    path = Path(__file__).parent / "data" / "jieba.json"
    path.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
