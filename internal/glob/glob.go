package glob

// MaxPattern bounds a pattern, in bytes: a key has at most block.MaxKey.
const MaxPattern = 1 << 10

// Glob is a compiled pattern: * for any bytes, ? for one byte, [set] for one of a
// set, [^set] for one that is not, \x for x. Matching a string of n bytes takes at
// most n steps for each token of the pattern. It is safe for concurrent use.
type Glob struct {
	tokens []token
	broken bool // it has a set without an end, and matches nothing
}

// token matches one byte, or, if star, any number of them.
type token struct {
	star, any bool
	one       byte
	set       *byteSet // nil for one
}

// byteSet has a bit for each byte.
type byteSet [4]uint64

func (s *byteSet) add(lo, hi byte) {
	for b := int(lo); b <= int(hi); b++ {
		s[b/64] |= 1 << (b % 64)
	}
}

func (s *byteSet) has(b byte) bool { return s[b/64]>>(b%64)&1 == 1 }

// Compile compiles a pattern; ok is false when it is longer than MaxPattern.
func Compile(pattern string) (g Glob, ok bool) {
	if len(pattern) > MaxPattern {
		return Glob{}, false
	}
	for i := 0; i < len(pattern) && !g.broken; {
		var t token
		switch pattern[i] {
		case '*':
			t.star = true
			i++
		case '?':
			t.any = true
			i++
		case '[':
			t, i = g.compileSet(pattern, i+1)
		default:
			t.one, i = literal(pattern, i)
		}
		if last := len(g.tokens) - 1; !t.star || last < 0 || !g.tokens[last].star {
			g.tokens = append(g.tokens, t)
		}
	}
	return g, true
}

// literal returns the byte at i, or that behind a backslash, and what follows.
func literal(pattern string, i int) (b byte, next int) {
	if pattern[i] == '\\' && i+1 < len(pattern) {
		i++
	}
	return pattern[i], i + 1
}

// compileSet compiles a set whose first byte is at i, and returns where it ends.
func (g *Glob) compileSet(pattern string, i int) (t token, next int) {
	t.set = &byteSet{}
	not := i < len(pattern) && pattern[i] == '^'
	if not {
		i++
	}
	for i < len(pattern) && pattern[i] != ']' {
		var lo byte
		lo, i = literal(pattern, i)
		hi := lo
		if i+1 < len(pattern) && pattern[i] == '-' && pattern[i+1] != ']' {
			hi, i = literal(pattern, i+1)
		}
		t.set.add(min(lo, hi), max(lo, hi))
	}
	if not {
		for i := range t.set {
			t.set[i] = ^t.set[i]
		}
	}
	g.broken = i == len(pattern)
	return t, i + 1
}

func (t *token) matches(b byte) bool {
	switch {
	case t.any:
		return true
	case t.set == nil:
		return t.one == b
	}
	return t.set.has(b)
}

// Match reports whether the whole of s matches. After a mismatch it goes back to
// the last star only, which takes one byte more: an earlier one need not.
func (g *Glob) Match(s string) bool {
	if g.broken {
		return false
	}
	at, i, star, taken := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case at < len(g.tokens) && g.tokens[at].star:
			star, taken = at, i
			at++
		case at < len(g.tokens) && g.tokens[at].matches(s[i]):
			at++
			i++
		case star >= 0:
			taken++
			at, i = star+1, taken
		default:
			return false
		}
	}
	for at < len(g.tokens) && g.tokens[at].star {
		at++
	}
	return at == len(g.tokens)
}
