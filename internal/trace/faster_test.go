package trace

import (
	"io"
	"strings"
	"testing"
)

// Times and pauses are divided and nothing else changes; a reader can still be closed.
func TestFaster(t *testing.T) {
	const lines = `{"timestamp": 1000, "input_length": 700, "hash_ids": [1, 2], "pause": 301}` + "\n" + `{"timestamp": 61000, "input_length": 5, "hash_ids": [1]}` + "\n"
	open := func() Source {
		r, err := NewReader(strings.NewReader(lines), "t", ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	src := Faster(open(), 60)
	var r Request
	if err := src.Next(&r); err != nil || r.Timestamp != 16 || r.Pause != 5 || r.InputTokens != 700 || len(r.Hashes) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := src.Next(&r); err != nil || r.Timestamp != 1016 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := src.Next(&r); err != io.EOF {
		t.Error(err)
	}
	if c, ok := src.(io.Closer); !ok || c.Close() != nil {
		t.Error("a reader can not be closed")
	}
	if _, ok := Faster(&Sorted{}, 2).(io.Closer); ok {
		t.Error("what has no Close has one")
	}
	if one := open(); Faster(one, 1) != one {
		t.Error("once as fast is another source")
	}
}
