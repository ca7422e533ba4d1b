"""A strict reader of the Prometheus text format 0.0.4, with the rules promtool checks."""

import math
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)\Z")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|\Z)')
TYPES = {"counter", "gauge", "histogram"}


def labels_of(text):
    out, at = {}, 0
    while at < len(text or ""):
        m = LABEL.match(text, at)
        assert m, text
        assert m[1] not in out, f"label {m[1]} twice"
        out[m[1]] = re.sub(r"\\(.)", lambda e: "\n" if e[1] == "n" else e[1], m[2])
        at = m.end()
    return out


class Scrape:
    """samples: {(name, frozenset of labels): value}; types and help by family."""

    def __init__(self, text):
        assert text.endswith("\n") and "\r" not in text
        self.samples, self.types, self.help = {}, {}, {}
        family, closed = None, set()
        for line in text[:-1].split("\n"):
            assert line, "an empty line"
            if line.startswith("# HELP "):
                name, help_text = line[7:].split(" ", 1)
                assert NAME.match(name) and name not in self.help and help_text
                self.help[name] = help_text
                closed.add(family)
                family = name
                assert family not in closed, f"{family} in two places"
            elif line.startswith("# TYPE "):
                name, kind = line[7:].split(" ")
                assert name == family and kind in TYPES and name not in self.types, line
                self.types[name] = kind
            else:
                self.sample(line, family)
        self.check_histograms()

    def sample(self, line, family):
        m = SAMPLE.match(line)
        assert m, line
        name, labels, value = m[1], labels_of(m[2]), float(m[3])
        kind = self.types[family]
        if kind == "histogram":
            assert name in {family + s for s in ("_bucket", "_sum", "_count")}, line
            assert ("le" in labels) == name.endswith("_bucket")
        else:
            assert name == family, line
            assert name.endswith("_total") == (kind == "counter"), line
        assert math.isfinite(value) and (kind == "gauge" or value >= 0), line
        key = (name, frozenset(labels.items()))
        assert key not in self.samples, line
        self.samples[key] = value

    def check_histograms(self):
        for family, kind in self.types.items():
            if kind != "histogram":
                continue
            buckets = {}
            for (name, labels), v in self.samples.items():
                if name == family + "_bucket":
                    rest = frozenset(x for x in labels if x[0] != "le")
                    buckets.setdefault(rest, []).append((float(dict(labels)["le"]), v))
            for rest, rows in buckets.items():
                assert rows == sorted(rows), family  # bounds rise as written, and so do counts
                assert [v for _, v in rows] == sorted(v for _, v in rows), family
                assert rows[-1][0] == math.inf
                assert self.samples[(family + "_count", rest)] == rows[-1][1]
                assert (family + "_sum", rest) in self.samples

    def get(self, name, **labels):
        """The sum of the samples that have these labels; 0 when there is none."""
        want = set(labels.items())
        return sum(v for (n, have), v in self.samples.items() if n == name and want <= have)
