package resp

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// seeds adds every quoted string of a testdata file.
func seeds(f *testing.F, file string, add func(s string)) {
	f.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		f.Fatal(err)
	}
	for _, q := range regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"`).FindAllString(string(text), -1) {
		if s, err := strconv.Unquote(q); err == nil {
			add(s)
		}
	}
}

// pieces delivers a stream in reads of the lengths that cuts names, in turn.
type pieces struct {
	p    []byte
	cuts []byte
	i    int
}

func (s *pieces) Read(p []byte) (int, error) {
	if len(s.p) == 0 {
		return 0, io.EOF
	}
	n := len(s.p)
	if len(s.cuts) > 0 {
		n = int(s.cuts[s.i%len(s.cuts)]) + 1
		s.i++
	}
	n = copy(p, s.p[:min(n, len(s.p))])
	s.p = s.p[n:]
	return n, nil
}

// FuzzReader: any bytes give commands or one error, the same however the
// network cuts them, and memory stays within the limits.
func FuzzReader(f *testing.F) {
	seeds(f, "testdata/commands.txt", func(s string) { f.Add([]byte(s), []byte{0, 5, 100}) })
	f.Add([]byte(command("MGET", "a", "b", string(make([]byte, 20_000)))), []byte{255})
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		whole := transcript(bytes.NewReader(in), 1<<20)
		if cut := transcript(&pieces{p: in, cuts: cuts}, 7); cut != whole {
			t.Fatalf("in pieces of %v:\n%s\nwhole:\n%s", cuts, cut, whole)
		}
		r := NewReader(bytes.NewReader(in))
		var err error
		for err == nil {
			_, err = r.Next(nil)
			if len(r.in.buf) != inputBytes || cap(r.hold) > 2*MaxHeld || r.held > MaxHeld {
				t.Fatalf("holds %d bytes (%d), buffer %d", cap(r.hold), r.held, len(r.in.buf))
			}
		}
	})
}

// FuzzClientReply: any answer gives a value or an error, the same however the
// network cuts it; both ways of reading a value agree.
func FuzzClientReply(f *testing.F) {
	seeds(f, "testdata/replies.txt", func(s string) { f.Add([]byte(s), []byte{0, 3}) })
	f.Add([]byte("|1\r\n+ttl\r\n:3\r\n*2\r\n!5\r\nERR x\r\n(123456789012345678901234567890\r\n"), []byte{})
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		parse := func(src io.Reader) (Reply, error) {
			var i input
			i.init(src)
			left := maxElems
			return i.reply(0, &left)
		}
		a, errA := parse(bytes.NewReader(in))
		b, errB := parse(&pieces{p: in, cuts: cuts})
		if (errA == nil) != (errB == nil) || errA != nil && errA.Error() != errB.Error() || !same(a, b) {
			t.Fatalf("whole: %+v %v\nin pieces: %+v %v", a, errA, b, errB)
		}
		if errA != nil || len(in) == 0 || in[0] != '$' {
			return
		}
		var i input
		i.init(bytes.NewReader(in))
		dst := make([]byte, len(in))
		n, err := i.value(dst)
		if a.Null() != (err == ErrNull) || !bytes.Equal(dst[:n], a.Str) {
			t.Fatalf("value: %q, %v; reply: %+v", dst[:n], err, a)
		}
	})
}

// same compares replies; NaN equals NaN.
func same(a, b Reply) bool {
	if a.Kind != b.Kind || a.Int != b.Int || !bytes.Equal(a.Str, b.Str) || len(a.Elems) != len(b.Elems) || a.Text() != b.Text() {
		return false
	}
	for i := range a.Elems {
		if !same(a.Elems[i], b.Elems[i]) {
			return false
		}
	}
	return true
}
