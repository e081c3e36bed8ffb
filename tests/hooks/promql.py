"""The part of PromQL that the rules and the board of `examples/monitoring` use, evaluated over recorded scrapes.

A scrape is a time and what prometheus_client's parser reads from /metrics. An instant vector is a dict from labels to value.
"""

import re
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

UNITS = {"s": 1, "m": 60, "h": 3600}


class Series:
    def __init__(self):
        self.scrapes = []

    def add(self, at, text):
        found = {}
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                found[one.name, tuple(sorted(one.labels.items()))] = one.value
        self.scrapes.append((at, found))

    @property
    def names(self):
        return {name for _, found in self.scrapes for name, _ in found}

    def instant(self, name, labels, at):
        last = next((found for when, found in reversed(self.scrapes) if when <= at), {})
        return {
            dict_labels: value
            for (one, dict_labels), value in last.items()
            if one == name and set(labels.items()) <= set(dict_labels)
        }

    def window(self, name, labels, at, length):
        found = defaultdict(list)
        for when, scrape in self.scrapes:
            if at - length < when <= at:
                for (one, own), value in scrape.items():
                    if one == name and set(labels.items()) <= set(own):
                        found[own].append((when, value))
        return found


def increase(points):
    total, last = 0.0, points[0][1]
    for _, value in points[1:]:
        total += value - last if value >= last else value
        last = value
    return total


class Parser:
    def __init__(self, text, series, at):
        self.tokens = re.findall(
            r'"[^"]*"|\d+\.?\d*[smh](?!\w)|\d+\.?\d*|[a-zA-Z_:][\w:]*|>=|<=|==|[-+*/(){}\[\],=<>]', text
        )
        self.series, self.at, self.place = series, at, 0

    def peek(self):
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self, *wanted):
        token = self.peek()
        assert token is not None, self.tokens
        assert not wanted or token in wanted, (token, wanted)
        self.place += 1
        return token

    def whole(self):
        value = self.sum_()
        if self.peek() in (">", "<", ">=", "<=", "=="):
            compare, limit = self.take(), self.sum_()
            fits = {">": lambda a, b: a > b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b}[compare]
            value = {
                k: v for k, v in value.items() if fits(v, limit if isinstance(limit, float) else limit.get(k, 0.0))
            }
        assert self.peek() is None, self.tokens[self.place :]
        return value

    def sum_(self):
        value = self.product()
        while self.peek() in ("+", "-"):
            sign = self.take()
            value = combined(value, self.product(), (lambda a, b: a + b) if sign == "+" else (lambda a, b: a - b))
        return value

    def product(self):
        value = self.atom()
        while self.peek() in ("*", "/"):
            sign = self.take()
            value = combined(
                value, self.atom(), (lambda a, b: a * b) if sign == "*" else (lambda a, b: a / b if b else float("nan"))
            )
        return value

    def atom(self):
        token = self.take()
        if re.fullmatch(r"\d+\.?\d*", token):
            return float(token)
        if token in ("rate", "increase", "deriv"):
            self.take("(")
            name, labels = self.take(), self.labels()
            self.take("[")
            text = self.take()
            length = float(text[:-1]) * UNITS[text[-1]]
            self.take("]")
            self.take(")")
            found = {}
            for own, points in self.series.window(name, labels, self.at, length).items():
                spent = points[-1][0] - points[0][0]
                if len(points) > 1:
                    whole = points[-1][1] - points[0][1] if token == "deriv" else increase(points)
                    found[own] = whole if token == "increase" else whole / spent
            return found
        if token == "sum":
            by = ()
            if self.peek() == "by":
                self.take("by")
                self.take("(")
                by = (self.take(),)
                self.take(")")
            self.take("(")
            inner = self.sum_()
            self.take(")")
            found = defaultdict(float)
            for own, value in inner.items():
                found[tuple((k, v) for k, v in own if k in by)] += value
            return dict(found)
        if token == "histogram_quantile":
            self.take("(")
            share = float(self.take())
            self.take(",")
            inner = self.sum_()
            self.take(")")
            return quantile(share, inner)
        return self.series.instant(token, self.labels(), self.at)

    def labels(self):
        found = {}
        if self.peek() == "{":
            self.take("{")
            while self.peek() != "}":
                name = self.take()
                self.take("=")
                found[name] = self.take().strip('"')
                if self.peek() == ",":
                    self.take(",")
            self.take("}")
        return found


def combined(one, other, how):
    if isinstance(one, float) and isinstance(other, float):
        return how(one, other)
    if isinstance(one, float):
        return {k: how(one, v) for k, v in other.items()}
    if isinstance(other, float):
        return {k: how(v, other) for k, v in one.items()}
    return {k: how(v, other[k]) for k, v in one.items() if k in other}


def quantile(share, buckets):
    ordered = sorted((float(dict(own)["le"]), value) for own, value in buckets.items())
    if not ordered or not ordered[-1][1]:
        return {}
    wanted, low, before = share * ordered[-1][1], 0.0, 0.0
    for high, count in ordered:
        if count >= wanted:
            if high == float("inf"):
                return {(): low}
            return {(): low + (high - low) * ((wanted - before) / max(count - before, 1e-12))}
        low, before = high, count
    return {}


def evaluate(text, series, at):
    return Parser(text, series, at).whole()
