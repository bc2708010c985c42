package block

import (
	"errors"
	"strings"
	"testing"
)

func TestLayout(t *testing.T) {
	whole := Layout{Bytes: 300, KeyBytes: 100, Tokens: 16, Layers: 2, Heads: 8, HeadDim: 80, DType: "bf16"}
	for _, c := range []struct {
		l     Layout
		size  int64
		keys  int64
		known bool
	}{
		{whole, 300, 100, true}, {whole, 150, 50, true}, {whole, 600, 200, true}, {whole, 0, 0, true},
		{whole, 151, 0, false}, {whole, -3, 0, false}, {whole, MaxSize + 1, 0, false}, {Layout{Tokens: 1}, 300, 0, false},
		{Layout{Bytes: MaxSize, KeyBytes: MaxSize}, MaxSize, MaxSize, true}, {Layout{Bytes: 5}, 7, 0, true},
	} {
		if keys, known := c.l.KeysOf(c.size); keys != c.keys || known != c.known {
			t.Errorf("%v of %d bytes: %d, %v; want %d, %v", c.l, c.size, keys, known, c.keys, c.known)
		}
	}
	if err := whole.Check(); err != nil {
		t.Error(err)
	}
	for _, bad := range []Layout{{Bytes: -1}, {Bytes: MaxSize + 1}, {Bytes: 2, KeyBytes: 3}, {KeyBytes: -1}, {DType: strings.Repeat("x", MaxDType+1)}} {
		if err := bad.Check(); !errors.Is(err, ErrBadLayout) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if got := whole.String(); got != `16 tokens, 2 layers, 8 heads, 80 elements, "bf16", keys 100 of 300 bytes` {
		t.Error(got)
	}
	if got := (Layout{}).String(); got != "-" {
		t.Error(got)
	}
}
