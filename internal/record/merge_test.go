package record

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cascadekv/cascade/traffic"
)

// fp stands for a key in these tests: its letter.
func fp(key rune) uint64 { return uint64(key) }

func keysOf(text string) (keys []uint64) {
	for _, k := range text {
		keys = append(keys, fp(k))
	}
	return keys
}

// command reads "ms engine.conn kind keys [parent]": look, get, put (a chain), puts (not stated
// to be one), and get1, look1, put1, of Redis.
func command(t *testing.T, line string) *traffic.Command {
	t.Helper()
	var c traffic.Command
	var kind, keys, parent string
	if n, _ := fmt.Sscanf(line, "%d %d.%d %s %s %s", &c.At, &c.Engine, &c.Conn, &kind, &keys, &parent); n < 5 {
		t.Fatal(line)
	}
	name := strings.TrimRight(kind, "s1")
	c.Kind, c.Chained = map[string]traffic.Kind{"look": traffic.Looked, "get": traffic.Got, "put": traffic.Put}[name], name == kind
	if c.Keys = keysOf(keys); parent != "" {
		c.Parent = fp(rune(parent[0]))
	}
	return &c
}

func merged(t *testing.T, lines []string) (got []string) {
	t.Helper()
	m := NewMerger(func(r *Request) {
		var b strings.Builder
		for _, k := range r.Keys {
			b.WriteRune(rune(k))
		}
		if r.Headless {
			b.WriteByte('?')
		}
		got = append(got, b.String())
	})
	for _, l := range lines {
		m.Add(command(t, l))
	}
	m.Flush()
	if len(m.open)+len(m.at)+len(m.latest)+m.keys != 0 || m.Cut() != 0 {
		t.Errorf("%d requests are open, %d keys, %d places, %d connections, %d cut", len(m.open), m.keys, len(m.at), len(m.latest), m.Cut())
	}
	return got
}

// TestRequests: what engines send, and the requests that it is.
func TestRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		lines []string
		want  string // requests in order
	}{
		"look, load, put": {[]string{"0 1.1 look abcd", "5 1.1 get ab", "900 1.1 put cd b"}, "abcd"},
		// Look-ups go by the shared index, loads and puts by another connection than
		// questions.
		"vLLM, look-ups unseen":                   {[]string{"0 1.2 get ab", "900 1.2 put cd b"}, "abcd"},
		"vLLM, ends looked for":                   {[]string{"0 1.2 put ab", "9000 1.1 look cd", "9010 1.2 get ab", "9900 1.2 put cd b", "9999 1.1 look ef d"}, "ab abcd abcdef"},
		"vLLM, an end looked for, nothing loaded": {[]string{"0 1.2 put ab", "9000 1.1 look cd", "9900 1.2 put cd b"}, "ab abcd"},
		"vLLM, a prompt in host":                  {[]string{"0 1.2 put abc", "60000 1.2 put de c"}, "abc abcde"},
		"vLLM, asks again":                        {[]string{"0 1.1 look abc", "50 1.1 look abc", "110 1.1 look abc", "200 1.2 get a", "300 1.2 put bc a"}, "abc"},
		"vLLM, two turns": {[]string{"0 1.2 put ab", "3000 1.2 get ab", "3100 1.2 put c b", "7000 1.2 get abc", "7100 1.2 put d c"},
			"ab abc abcd"},
		"vLLM, two at once": {[]string{"0 1.2 get ab", "1 1.2 get ab", "100 1.2 put c b", "110 1.2 put x b"}, "abx abc"},
		"chunked prefill":   {[]string{"0 1.2 put ab", "900 1.2 put cd b", "1900 1.2 put ef d"}, "abcdef"},
		"SGLang, pieces": {[]string{"0 1.1 put abc", "10 1.1 put def c", "5000 1.2 get ab", "5010 1.2 get cd b", "5020 1.2 get ef d",
			"5100 1.3 put gh f"}, "abcdef abcdefgh"},
		"LMCache, chains of what was looked for": {[]string{"0 1.1 look abcd", "300 1.2 puts ab", "310 1.2 put cd b"}, "abcd"},
		"LMCache, chunks of two prompts at once": {[]string{"0 1.1 look ab", "5 1.1 look cd", "300 1.2 puts abcd"}, "ab cd"},
		"Redis, one by one": {[]string{"0 1.1 look1 a", "1 1.1 look1 b", "2 1.1 look1 c", "5 1.2 get1 a", "6 1.2 get1 b", "100 1.2 put1 c",
			"200 1.1 look1 x", "201 1.1 look1 y"}, "abc xy"},
		"one after the other":   {[]string{"0 1.1 look a", "1 1.1 look b", "2 1.1 put c", "3 1.1 put d"}, "a b c d"},
		"the same prompt twice": {[]string{"0 1.1 look ab", "1 1.1 get ab", "2 1.1 look ab", "3 1.1 get ab"}, "ab ab"},
		"loaded twice":          {[]string{"0 1.1 get ab", "1 1.1 get ab"}, "ab ab"},
		"put twice":             {[]string{"0 1.1 put ab", "1 1.1 put ab"}, "ab ab"},
		"a longer prompt":       {[]string{"0 1.1 look ab", "1 1.1 look abc"}, "ab abc"},
		"another end":           {[]string{"0 1.1 look abc", "1 1.1 look abd", "2 1.1 put c b", "3 1.1 put d b"}, "abc abd"},
		"two engines":           {[]string{"0 1.1 look abc", "1 2.2 look abc", "2 2.2 put abc", "3 1.1 put abc"}, "abc abc"},
		"two connections":       {[]string{"0 1.1 look abc", "1 1.2 look abc", "2 1.2 put abc", "3 1.1 put abc"}, "abc abc"},
		"a late put":            {[]string{"0 1.1 look ab", "30000 1.1 put ab"}, "ab ab"},
		"began before":          {[]string{"0 1.1 put cd b", "5000 1.1 put ef d"}, "bcd? bcdef?"},
		"a key of two prefixes": {[]string{"0 1.1 look ab", "1000 1.1 look xb", "9000 1.1 put cb", "19000 1.1 put1 b"}, "ab xb cb b"},
		"a key twice":           {[]string{"0 1.1 look1 aabab"}, "ab"},
		"circle":                {[]string{"0 1.1 get ab", "5000 1.1 get ba", "50000 1.1 put c a"}, "ab ab bac"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(merged(t, tc.lines), " "); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestBounds: neither requests nor their keys nor links grow without end.
func TestBounds(t *testing.T) {
	ended, blocks := 0, 0
	m := NewMerger(func(r *Request) {
		ended++
		blocks = max(blocks, len(r.Keys))
	})
	for i := range uint64(maxOpen + 10) {
		m.Add(&traffic.Command{Kind: traffic.Looked, Chained: true, Keys: []uint64{1 << 40, 1<<41 + i}})
	}
	if ended != 10 || m.Cut() != 10 {
		t.Errorf("%d requests are ended, %d are cut", ended, m.Cut())
	}
	m.Flush()
	for i := range uint64(maxBlocks/1024 + 1) {
		keys := make([]uint64, 1024)
		for j := range keys {
			keys[j] = 1 + 1024*i + uint64(j)
		}
		m.Add(&traffic.Command{Kind: traffic.Got, Chained: true, Parent: 1024 * i, Keys: keys})
	}
	m.Flush()
	if blocks != maxBlocks {
		t.Errorf("a request of %d blocks, at most %d", blocks, maxBlocks)
	}
	var l links
	for i := range uint64(5 * linksKept) {
		l.learn(i+1, i)
	}
	if n := len(l.young) + len(l.old); n > 2*linksKept {
		t.Errorf("%d links", n)
	}
	if p, known := l.parent(5 * linksKept); !known || p != 5*linksKept-1 {
		t.Error("the last link is not known")
	}
}

// FuzzMerger: whatever comes, requests are chains without repetition, in order of time, and
// nothing is left behind.
func FuzzMerger(f *testing.F) {
	f.Add([]byte("\x01abc\x00\x02ab\x10\x03c"), uint8(3))
	f.Fuzz(func(t *testing.T, script []byte, most uint8) {
		last := int64(0)
		m := NewMerger(func(r *Request) {
			sorted := slices.Clone(r.Keys)
			slices.Sort(sorted)
			if len(r.Keys) == 0 || len(slices.Compact(sorted)) != len(r.Keys) || r.Began < last {
				t.Errorf("%+v behind %d", r, last)
			}
			last = r.Began
		})
		now := int64(0)
		for len(script) > 4 {
			n := min(1+int(script[0]%(most%8+1)), len(script)-4)
			now += int64(script[1]) * int64(script[1])
			c := &traffic.Command{Kind: traffic.Kind(script[2]%3) + traffic.Looked, Chained: script[2]&16 > 0, At: now, Parent: uint64(script[3] % 8)}
			c.Engine, c.Conn = uint64(script[2]>>5), uint64(script[2]>>6)
			for _, k := range script[4 : 4+n] {
				c.Keys = append(c.Keys, uint64(k%32)+1)
			}
			m.Add(c)
			script = script[4+n:]
		}
		m.Flush()
		if len(m.open)+len(m.at)+len(m.latest)+m.keys != 0 {
			t.Errorf("left: %d, %d, %d, %d", len(m.open), len(m.at), len(m.latest), m.keys)
		}
	})
}
