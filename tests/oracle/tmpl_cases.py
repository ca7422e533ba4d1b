"""Small templates, one feature each, for the plain goldens of tmpl_golden.py."""

X = {"s": "Hello, World", "u": "Grüße ß ŉ İstanbul ΑΣ ﬁ 👩‍👧", "n": 7, "f": 2.5, "big": 12345678901234567890,
     "l": [3, 1, 2], "d": {"b": 1, "a": [1, {"x": None}], "items": "shadow"}, "t": True, "none": None,
     "users": [{"name": "Ann", "age": 30, "tags": ["x", "y"]}, {"name": "bob", "age": 25, "tags": []},
               {"name": "Cid", "age": 30, "email": "c@d"}], "e": "", "z": 0, "html": "<a href='x'>\"&amp;</a>"}

EXPRESSIONS = """
1 + 2 * 3 ** 2 // 4 % 5 - -1
7 // 2 | string ~ -7 // 2 ~ 7 % -3 ~ -7 % 3 ~ 7.5 // 2 ~ -7.5 % 2
1 / 3
2 ** 10 ~ 2 ** -1 ~ 2.0 ** 0.5 ~ (-2) ** 3
1e16 ~ 1e15 ~ 1.5e-5 ~ 0.0001 ~ 123456789.123456789 ~ 1e100 ~ -0.0 ~ 5e-324
1_000 + 0x1F + 0b101 + 0o17
0.1 + 0.2
10 / 5
true + 1
'a' 'b' "c"
"a\\n\\t\\x41\\u00e9\\\\\\'\\"\\q\\101"
'é\\é'
s[0] ~ s[-1] ~ s[99]
s[1:5] ~ '|' ~ s[::-1] ~ '|' ~ s[-3:] ~ '|' ~ s[::2] ~ '|' ~ s[5:1:-1] ~ '|' ~ s[:-99]
u[0:5] ~ u[::-1] ~ u | length
l[::-1] ~ l[1:] ~ l[:1] ~ l[5:]
(1, 2, 3)[1:] ~ (1,) ~ () ~ [1, (2,), {'a': (3,)}]
1 < 2 < 3 ~ (1 < 2 > 3) ~ (1 == 1.0 == true)
1 in l ~ 5 not in l ~ 'ell' in s ~ 'b' in d ~ 'q' in d ~ ('' in '')
not t ~ (not e)
e or 'default'
n and s
none or z or e
n if t else 'no'
'yes' if e
'a' if e else 'b' if z else 'c'
d.items() | list
d['items']
d.b ~ d['b'] ~ d.get('b') ~ d.get('zz') ~ d.get('zz', 5)
d.keys() | list ~ d.values() | list
d.items()
d.keys()
d.values()
missing
missing is defined
d.nope is defined
d.nope
missing.x
missing[0]
missing + 1
missing() 
missing < 1
missing == missing
missing ~ 'x'
none.x is defined
none ~ true ~ false
[none, true, 1.0, 'it''s', "q'q", 'd"d', '\\n\\x00\\x7f\\u200b', '👩‍👧']
'%s and %d and %5.2f|%-5s|%05d|%x|%+d|%r|%%' % ('a', 3, 2.5, 'ab', 42, 255, 1, 'q')
'%(a)s %(b)05.1f' % {'a': 1, 'b': 2.25}
'%s' % none
'%d' % 'x'
'%s %s' % 1
'{} {} {}'.format(1, 'a', none)
'{0} {1} {0!r} {x} {x[0]} {d.b} {d[a]}'.format(1, 'a', x=l, d=d)
'{:>5}|{:<5}|{:^5}|{:05d}|{:+}|{:,}|{:.2f}|{:e}|{:%}|{:x}|{:#x}|{:b}'.format('a', 'b', 'c', 42, 1, 1234567, 3.14159, 12345.678, 0.25, 255, 255, 5)
'{:{}}|{:*^9}|{{}}'.format('a', 4, 'mid')
'{:.3}|{:.3}|{:g}|{}|{:_}'.format('abcdef', 3.14159, 1e10, 1.0, 1000000)
'a,b,,c'.split(',') ~ ' a  b '.split() ~ 'a,b,c'.split(',', 1) ~ 'a,b,c'.rsplit(',', 1) ~ 'abc'.split('b')
'a\\nb\\r\\nc\\x0bd'.splitlines() ~ 'a\\nb\\n'.splitlines(true)
'  x '.strip() ~ '|' ~ 'xxaxx'.strip('x') ~ '|' ~ 'abcab'.lstrip('ab') ~ '|' ~ 'abcab'.rstrip('ab') ~ '|'
'</think>a</think>b'.split('</think>')[-1].lstrip('\\n')
('a/b/c'.split('/') | last).lstrip('c') ~ '.'
s.startswith('He') ~ s.startswith(('x', 'H')) ~ s.endswith('ld') ~ s.endswith(('d',)) ~ s.startswith('ello', 1)
s.upper() ~ s.lower() ~ s.title() ~ s.capitalize() ~ s.swapcase()
u.upper() ~ u.lower() ~ u.title() ~ u.capitalize() ~ u.casefold()
"they're bill's friends".title() ~ "they're bill's FRIENDS (ok) [x]" | title
s.find('o') ~ s.rfind('o') ~ s.find('zz') ~ s.index('W') ~ s.count('l') ~ u.find('ß')
s.index('zz')
s.replace('l', 'L') ~ s.replace('l', 'L', 1) ~ 'aaa'.replace('', '-') ~ 'aaa'.replace('', '-', 2)
', '.join(['a', 'b']) ~ '-'.join('abc')
', '.join([1])
'a=b=c'.partition('=') ~ 'a=b=c'.rpartition('=') ~ 'abc'.partition('=')
'abc'.center(8, '*') ~ 'abc'.ljust(5) ~ '|' ~ 'abc'.rjust(5) ~ '7'.zfill(3) ~ '-7'.zfill(4) ~ 'ab'.center(5)
'abc'.isalpha() ~ '12'.isdigit() ~ 'a1'.isalnum() ~ ' '.isspace() ~ 'A'.isupper() ~ 'a'.islower() ~ 'Ab'.istitle() ~ ''.isalpha()
'prefix-x'.removeprefix('prefix-') ~ 'x.py'.removesuffix('.py') ~ 'a\\tb'.expandtabs(4)
l.index(2) ~ l.count(1) ~ l.copy()
l.append(4)
d.pop('b')
d.update({})
l.append is defined
s.__class__
''.__class__.__mro__
d.__class__ is defined
[1, 2] + [3] ~ (1,) + (2,) ~ [0] * 3 ~ 'ab' * 2 ~ 2 * 'ab' ~ 'x' * -1
'a' + 1
[1] + (2,)
1 + 'a'
'a' * 'b'
'a' < 'b' ~ ('B' < 'a') ~ ([1, 2] < [1, 3]) ~ ((1,) < (1, 0)) ~ ('é' > 'z')
1 < 'a'
{'a': 1, 'b': [1, 2], 3: 'x', none: true, 1.5: 0}
{'a': 1} == {'a': 1.0} ~ ([1, 2] == [1, 2]) ~ ([1] == (1,)) ~ ('1' == 1) ~ (none == false)
{[1]: 2}
range(5) | list ~ range(2, 8, 3) | list ~ range(3, 0, -1) | list ~ range(3)[1] ~ range(3) ~ range(5)[1:3] ~ range(0, 9, 2)
range(1000000)
range(1.5)
9223372036854775807 + 0
5 / 0
5 // 0
5 % 0
1.0 / 0
big ~ ' ' ~ big | string
[big] | tojson
-n ~ +n ~ -f ~ -t ~ +t
-s
x.y.z
s.foo
s.foo()
n()
s()
n.x
l.x
l[1.0]
l['a']
l[none]
d[l]
l[true]
namespace(a=1, b='x')
namespace({'a': 1}).a ~ namespace(a=2).b
dict(a=1, b=2) ~ dict({'x': 1}, y=2) ~ dict([('p', 1), ['q', 2]])
raise_exception('no: ' ~ n)
raise_exception('Grüße <>&')
strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %y %I %p %%') ~ strftime_now('%d %b %Y') ~ strftime_now('%-d/%-m')
unknown_function(1)
d | tojson ~ d | tojson(indent=2) ~ [] | tojson(indent=2) ~ {} | tojson(indent=2)
[1, 1.0, 1e100, true, none, 'é"\\\\\\n\\x01/\\u2028', [], {}, (1, 2), {'a': {'b': [1]}}] | tojson
[1, {'b': 1, 'a': 'é'}] | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true)
{1: 2, none: 3, true: 4, 1.5: 5} | tojson ~ '👩' | tojson(true)
missing | tojson
range(3) | tojson
s | tojson | length
[1, [2, {'a': []}]] | tojson(indent='\\t') ~ [1] | tojson(indent=0)
s | upper ~ s | lower ~ s | capitalize ~ s | length ~ s | reverse ~ s | list | first
'  x ' | trim ~ 'xxaxx' | trim('x') ~ 5 | trim
l | join(', ') ~ l | join ~ users | join(', ', attribute='name') ~ 'abc' | join('-') ~ none | string
l | first ~ l | last ~ l | length ~ l | sum ~ l | max ~ l | min ~ l | sort ~ l | sort(reverse=true) ~ l | reverse | list
[] | first
[] | last is defined
[] | max is defined
['b', 'A', 'c'] | sort ~ ['b', 'A', 'c'] | sort(case_sensitive=true) ~ users | sort(attribute='age,name') | map(attribute='name') | list
['b', 'A', 'a', 'B'] | unique | list ~ ['b', 'A', 'a'] | unique(true) | list ~ ['b', 'A'] | min ~ ['b', 'A'] | max(case_sensitive=true)
[1, 'a'] | sort
users | map(attribute='name') | join(',') ~ users | map(attribute='email', default='-') | join(',') ~ users | map(attribute='tags.0') | join(',')
['a', 'b'] | map('upper') | list ~ [1.5, 2.5] | map('round') | list ~ ['a-b'] | map('replace', '-', '+') | list
users | selectattr('age', 'equalto', 30) | map(attribute='name') | list ~ users | rejectattr('tags') | list | length ~ users | selectattr('email', 'defined') | list | length
[1, 2, 3, 4] | select('odd') | list ~ [1, 2, 3] | reject('gt', 1) | list ~ [0, 1, ''] | select | list ~ range(10) | select('divisibleby', 3) | list
(users | selectattr('age', 'gt', 99)) and 'generators are true'
users | selectattr('age') | length
[1, 2] | map('nope') | list
[1, 2] | select('nope') | list
(users | groupby('age')) | length ~ (users | groupby('age'))[0].grouper ~ (users | groupby('age'))[1].list | length ~ (users | groupby('age'))[0][0]
users | groupby('name') | map(attribute=0) | list ~ users | groupby('email', default='z') | map('first') | list
{'b': 2, 'A': 1, 'c': 0} | dictsort ~ {'b': 2, 'A': 1} | dictsort(true) ~ {'b': 2, 'a': 3} | dictsort(by='value') ~ {'a': 1, 'b': 2} | dictsort(reverse=true)
d | items | list ~ missing | items | list ~ {'a': 1} | items | map('first') | list
missing | default('x') ~ e | default('x') ~ e | default('x', true) ~ none | default('x') ~ missing | d('y') ~ missing | default
'42' | int ~ '42.9' | int ~ 'x' | int ~ 'x' | int(-1) ~ '0x1F' | int(base=16) ~ 3.99 | int ~ -3.99 | int ~ ' 7 ' | int ~ '1_000' | int ~ none | int ~ true | int ~ '0b11' | int(0, 2)
'1.5' | float ~ 'x' | float ~ 3 | float ~ 'nan' | float ~ '1e3' | float ~ none | float(2.0) ~ '-inf' | float
2.5 | round ~ 3.5 | round ~ 2.675 | round(2) ~ 42.55 | round(1, 'floor') ~ 42.51 | round(1, 'ceil') ~ 5 | round ~ 1234 | round(-2) ~ 1250 | round(-2) ~ 0.5 | round | int
-5 | abs ~ -5.5 | abs ~ true | abs
s | replace('l', 'L') ~ s | replace('l', 'L', 1) ~ 123 | replace(2, 'x')
'hello world foo' | title ~ 'foo-bar (baz) {q} [w] <e>' | title ~ 'ünï ŉx' | title
'a\\nb\\n\\nc' | indent ~ '|' ~ 'a\\nb' | indent(2, true) ~ '|' ~ 'a\\n\\nb' | indent(2, blank=true) ~ '|' ~ 'a\\nb' | indent('> ') ~ '|' ~ 'a\\n' | indent
'foo bar baz qux' | truncate(9) ~ '|' ~ 'foo bar baz qux' | truncate(9, true) ~ '|' ~ 'foo bar baz qux' | truncate(11) ~ '|' ~ 'foo bar baz qux' | truncate(11, false, '...', 0) ~ '|' ~ 'foo bar' | truncate(9)
'The quick brown fox jumps over the lazy dog' | wordwrap(12) ~ '|' ~ 'abcdefghijklmnop qr' | wordwrap(5) ~ '|' ~ 'a b\\nc d' | wordwrap(3) ~ '|' ~ 'well-known thing' | wordwrap(6) ~ '|' ~ 'abcdefgh' | wordwrap(3, false)
'Hello wörld, it''s 2 words' | wordcount ~ 'x' | center(5) ~ '|' ~ 'a b' | urlencode ~ 'ä/?&=' | urlencode ~ {'a': 'b c', 'd/': 1} | urlencode ~ [('x', 'y&')] | urlencode
html | escape ~ html | e | e ~ html | forceescape ~ html | safe ~ ('<b>' | safe + '<i>') ~ ('<' + '<b>' | safe) ~ '<x>' | striptags ~ '<p>a  b</p> &lt;c' | striptags
'<b>' | safe ~ '<i>' ~ ('<b>' | e is escaped) ~ ('x' is escaped)
{'class': 'a b', 'id': none, 'n': 5, 'q': '"'} | xmlattr ~ '|' ~ {'a': 1} | xmlattr(false)
1000 | filesizeformat ~ 1 | filesizeformat ~ 123456789 | filesizeformat ~ 1024 | filesizeformat(true) ~ 999 | filesizeformat ~ '2048' | filesizeformat(binary=true)
[1, 2, 3, 4, 5] | batch(2) | list ~ [1, 2, 3] | batch(2, 'x') | list ~ [1, 2, 3, 4, 5] | slice(3) | list ~ [1, 2, 3, 4] | slice(3, 'x') | list
[1, 2, 3] | sum(start=10) ~ users | sum(attribute='age') ~ [[1], [2]] | sum(start=[])
'%s-%s' | format(1, 'b') ~ '%(x)s' | format(x=5)
s | attr('upper') is callable ~ d | attr('b') is defined ~ (d | attr('items'))() | list
[1, 2] is sequence ~ s is sequence ~ d is mapping ~ n is number ~ f is float ~ n is integer ~ t is boolean ~ t is integer ~ none is none ~ s is string ~ range(3) is sequence ~ d.items() is sequence
5 is odd ~ 4 is even ~ 9 is divisibleby 3 ~ 9 is divisibleby(2) ~ 'A' is upper ~ 'a' is lower ~ 1 is eq 1 ~ 1 is ne 2 ~ 2 is gt 1 ~ 1 is lt 2 ~ 1 is in [1] ~ 1 is sameas 1 ~ 2 is ge(2) ~ true is true ~ 1 is true ~ false is false
missing is undefined ~ missing is iterable ~ l is iterable ~ n is iterable ~ 'upper' is filter ~ 'zz' is filter ~ 'odd' is test ~ range is callable ~ s is callable
n is not none ~ (n is not string) ~ not n is string
not missing is defined and 1
n is nope
n | nope
1 is odd is even
[[1, 2], [3]] | map('length') | list ~ [[3, 1], [2]] | map('sort') | list
'x' if missing else 'y'
missing | list ~ missing | length ~ missing | join(',') ~ missing | upper ~ missing | string
missing | int
none | length
5 | length
none | join
[3, 1] | sort | first + 1
(1 + 2) | string + 'x'
-1 | abs
2 * 3 | string
'a' ~ 1 + 2
not 1 == 2
1 if 0 else 2 if 0 else 3
l | map('string') | map('length') | sum
d.a[1].x is none
d['a'][0] + d.b
users[0].tags[0] ~ users[-1]['name'] ~ users.0.name
(s | upper).lower()
s|upper|lower|title
'\\u4f60\\u597d' ~ '\\U0001f600'

07
1.
.5
{}['a'] is defined
'a'.join(['x', 'y', 'z'] | reverse)
'abc' | list | reverse | list
[1, 2, 3] | reverse | length
lipsum is callable
l | map('string') | reverse | list
range(9)[3:2] ~ range(9)[5:1:-2] ~ range(1, 9, 3)[1:]
missing | last ~ missing | reverse | list
(1, 2) == (1, 2) ~ ((1, 2) is sameas (1, 2))
1 == true ~ ('1' in '123') ~ (1 in (1.0, 2))
1.0 in [1] ~ (true in [1]) ~ ({1: 'x'}[1.0]) ~ {1: 'x', true: 'y'}
1 in 'abc'
none in 'abc'
1 in none
1 in n
2 in range(5) ~ ('b' in d.keys()) ~ (1 in d.values()) ~ (('b', 1) in d.items())
[1,2,] ~ (1,) ~ {'a':1,}
[1 2]
{'a' 1}
(1
'abc
a b
s.
s[
s[]
s[1,2]
1 +
{{ 1 }}
"a" is string and "b" is not number or false
l[0:2][1] ~ l[:][0] ~ l[::2] ~ l[2::-1] ~ s[:3][::-1]
s[::0]
s['a':]
n[1:]
d[1:]
[1, 2, 3][true:]
cycler('a', 'b').next()
joiner('|')() ~ 'x'
cycler()
3 in [1, 2, 3][1:]
[1, 2, 3] | last | string | length
s | select('equalto', 'l') | list | length
s | map('upper') | join
s|batch(5)|map('join')|list
d|length ~ d|list ~ d|first ~ d|last ~ d|join(',') ~ d|sort
"%5s|%-5s|%.2s" % ("ab", "ab", "abcdef")
"%c%c %i %o %X %e %G" % (65, "b", 5, 8, 255, 12345.678, 0.00001)
"%s" % [1, 'a'] ~ "%s" % {'a': 1} ~ "%r" % (none,)
'{!r:>6}|{:<4}|{:^+7.1f}|{:=+8d}'.format('a', true, 2.55, 42)
'{a.b}'.format(a={'b': 1})
'{}{}'.format(1)
'{0}{}'.format(1, 2)
'}'.format()
'{:d}'.format('x')
""".strip("\n").split("\n")

BLOCKS = [
    "{% for x in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.cycle('a','b') }}/{{ loop.previtem }}/{{ loop.nextitem }};{% endfor %}",
    "{% for x in [1,1,2] %}{{ loop.changed(x) }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for x in [] %}a{% else %}empty{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{{ loop.last }} {% else %}none{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ loop.index }}{{ k }}{% endfor %}",
    "{% for k in d %}{{ k }},{% endfor %}",
    "{% for c in 'aé👩' %}[{{ c }}]{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{% for x in none %}{% endfor %}",
    "{% for x in missing %}a{% else %}b{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1,2] %}{% for y in [1,2,3] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in [1,2] %}{% break %}{% else %}never{% endfor %}end",
    "{% break %}",
    "{% set x = 1 %}{% for i in [1,2] %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    "{% set d2 = {} %}{% set d2.x = 1 %}",
    "{% set ns = namespace(_x=1) %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]",
    "{% set x | upper | replace('A', 'z') %}a{{ n }}b{% endset %}[{{ x }}]",
    "{% if t %}{% set x = 5 %}{% endif %}{{ x }}",
    "{% if e %}1{% elif z %}2{% elif n %}3{% else %}4{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}{% if l and d %}c{% endif %}",
    "{% if e %}{{ 1 | nosuch }}{% endif %}ok",
    "{% macro m(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}{{ m(1, c=9) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}",
    "{% macro m(a) %}x{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}x{% endmacro %}{{ m(q=2) }}",
    "{% macro m(a, b) %}{{ a }}{{ b is defined }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a) %}{{ a + 1 }}{% endmacro %}{{ m() }}",
    "{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * fact(n - 1)|int }}{% endif %}{% endmacro %}{{ fact(10) }}",
    "{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}in {{ n }}{% endcall %}",
    "{% macro each(l) %}{% for x in l %}{{ caller(x, loop.index) }};{% endfor %}{% endmacro %}{% call(x, i=0) each(l) %}{{ i }}:{{ x }}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% set y = 1 %}{% macro m() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ m() }}",
    "{% macro outer() %}{% macro inner(x) %}i{{ x }}{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer() }}{{ inner is defined }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} aaa {% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set n = 99 %}{{ n }}{% endwith %}{{ n }}{{ a is defined }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
    "{% with a = 1, b = a %}{{ b is defined }}{% endwith %}",
    "{% raw %}{{ x }}{% if %}{% endraw %}{# comment {{ }} #}after",
    "a{#- c -#} b {#+ d +#}\n c",
    "  {% raw -%}\n  {{ x }}  {%- endraw %}  ",
    "{% for x in l recursive %}{{ x }}{% endfor %}",
    "{% for t in [{'n':1,'c':[{'n':2,'c':[{'n':3,'c':[]}]},{'n':4,'c':[]}]}] recursive %}{{ loop.depth }}:{{ t.n }}({{ loop(t.c) }}){% endfor %}",
    "{% for x in l %}{{ loop(l) }}{% endfor %}",
    "{% generation %}a{{ n }}{% set w = 1 %}{% endgeneration %}{{ w is defined }}",
    "{% block b %}x{{ n }}{% endblock b %}{% for i in [1] %}{% block c %}{{ i is defined }}{% endblock %}{% block d scoped %}{{ i }}{% endblock %}{% endfor %}",
    "{% print 1, 'a', n %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}",
    "{% set j = joiner() %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set g = l | map('string') %}{{ g | list }}{{ g | list }}",
    "{% set g = users | selectattr('age', 'equalto', 30) %}{% for u in g %}{{ u.name }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% set ns = namespace(go=true) %}{% for x in [1,2,3,4] if ns.go %}{{ x }}{% if x == 2 %}{% set ns.go = false %}{% endif %}{% endfor %}",
    "{%- for m in messages|default([]) -%}x{%- endfor -%}ok",
    "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}",
    "{% nope %}", "{% if %}{% endif %}", "{% if 1 %}", "{% endif %}", "{% for x in %}{% endfor %}", "{% for in l %}{% endfor %}",
    "{% set 1 = 2 %}", "{% set none = 2 %}", "{% set s.x.y = 1 %}", "{{", "{{ 1", "{% if 1", "{# x", "{% raw %}x", "}}", "%}", "{{ }}", "{{ 1 }", "{{ ) }}", "{{ (1] }}",
    "{{ 1 | }}", "{{ 1 is }}", "{{ f(1, a=2, 3) }}", "{{ f(**d, *l) }}",
    "{% macro m(a=1, b) %}{% endmacro %}", "{% call 1 %}{% endcall %}", "{{ '\\", "{% for x in l %}{% else %}{% else %}{% endfor %}",
    "{% macro m(*a) %}{% endmacro %}",
    "{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], **{'c': 3}) }}{{ m(*l) }}{{ m(1, *[2], c=5) }}",
    "{{ dict(*[[('a', 1)]], **{'b': 2}) }}",
    "{% set loop = 5 %}{{ loop }}{% for x in [1] %}{{ loop.index }}{% endfor %}{{ loop }}",
    "{% for loop2 in [1] %}{{ loop2 }}{% endfor %}",
    "{% if true: %}colon{% endif %}{% for x in l: %}{{ x }}{% endfor %}",
    "{{ x }}{% set x = 1 %}{{ x }}",
    "{% for x in l %}{% if loop.first %}{% set y = x %}{% endif %}{{ y is defined }}{% endfor %}",
    "{% for x in l %}{{ loop }}{% endfor %}",
    "{% filter nosuch %}x{% endfilter %}",
    "{{ s | upper() }}{{ s | replace(old='l', new='L') }}{{ s | replace('l', new='L', count=1) }}",
    "{{ s | replace('l') }}", "{{ s | upper(1) }}", "{{ s | replace('a', 'b', zz=1) }}", "{{ s.upper(1) }}", "{{ s.split(maxsplit=1) }}{{ s.split(sep=',') }}",
    "{{ range }}{{ m }}"[:0] + "{% macro m() %}{% endmacro %}{{ m }}",
    "{{ 'a' ~ {'b': 'c'} ~ ['d'] ~ ('e',) ~ none ~ 1.0 }}",
    "{% set x = [] %}{% for i in l %}{% set x = x + [i] %}{% endfor %}{{ x }}",
    "{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}",
    "{% for i in range(3) %}{% set ns = namespace(v=i) %}{{ ns.v }}{% endfor %}",
    "{{- s -}}  x  {{- s }}", "{%- if t -%}  a  {%- endif -%}  b",
    "line1\n  {% if t %}\n  in\n  {% endif %}\nend\n", "line1\n  {%+ if t %}\n  in\n  {%+ endif +%}\nend\n\n",
    "a\n\n  {#- x #}\n b", "  {{ n }}\n  {{- n -}}  \n\nz", "{% if t %}\n\n{% endif %}\n", "x\r\ny\rz\n", "\n", "", " {% set q = 1 %} ", "\t{# c #}\tx",
    "{% if t -%}\n  \n x\n{%- endif %}\n", "a {%- if t %} b{% endif %}", "{{ 'a\nb\r\nc' }}", "{%if t%}x{%endif%}", "{{n}}{{-n-}}{{ n}}",
    "x{% set a = 1 -%}   \n\n   y", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': {'b': 1}}.a.b }}}}",
    "{% set content = '<think>\\nabc\\n</think>\\n\\nhello' %}{% set r = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}[{{ r }}][{{ content.split('</think>')[-1].lstrip('\\n') }}]",
    "{% for x in l %}{%- if not loop.last %}{{ x ~ ',' }}{% else %}{{ x }}{% endif -%}{% endfor %}",
    "{% macro render(v) %}{% if v is mapping %}{% for k, x in v.items() %}{{ k }}:{{ render(x) }},{% endfor %}{% elif v is iterable and v is not string %}[{% for x in v %}{{ render(x) }}{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}{{ render(d) }}{{ render(users) }}",
]


def plain_cases():
    """The variables, and the templates."""
    return X, ["{{ " + e + " }}" for e in EXPRESSIONS] + BLOCKS
