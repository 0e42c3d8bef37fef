#!/usr/bin/python3
"""results/peers.json as a figure: seconds of a causal prefill over its length. Uses gnuplot."""

import json
import subprocess
import sys

COLUMNS = [
    ("torch", "torch {version}, composed, in blocks"),
    ("ggml", "ggml {version}"),
    ("onnxruntime", "ONNX Runtime {version}, GroupQueryAttention"),
    ("ovq attention", "ovq, full attention"),
    ("ovq", "ovq, OVQ-attention (N 2048)"),
]


def main(source, target):
    with open(source) as file:
        report = json.load(file)
    cases = [case for case in report["cases"] if case["name"].startswith("prefill")]
    columns = [column for column in COLUMNS if any(column[0] in case["peers"] for case in cases)]
    blocks, plots = [], []
    for key, title in columns:
        rows = [
            f"{case['name'].split()[1]} {case['peers'][key]['seconds_median']}" for case in cases if key in case["peers"]
        ]
        version = report["versions"].get(key, "").split("+")[0]
        blocks.append(f"$data{len(blocks)} << END\n" + "\n".join(rows) + "\nEND\n")
        plots.append(f"$data{len(plots)} using 1:2 with linespoints lw 2 pt 7 ps 0.6 title '{title.format(version=version)}'")
    threads = report["machine"]["threads"]
    commands = f"""set terminal svg size 720,440 font 'sans-serif,13' background 'white'
set output '{target}'
set logscale xy
set key top left
set grid ytics
set xlabel 'tokens'
set ylabel 'seconds, median'
set xtics (""" + ", ".join(f"'{int(c['name'].split()[1]):,}' {c['name'].split()[1]}" for c in cases) + f""")
set title 'Causal prefill, 6 heads of 128, {threads} threads'
""" + "".join(blocks) + "plot " + ", ".join(plots) + "\n"
    subprocess.run(["gnuplot"], input=commands, text=True, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
