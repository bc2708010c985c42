package home

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

// The bytes of docs/format.md §5.1. A change here is a new version of the format.
func TestGoldenBytes(t *testing.T) {
	h := header{base: 3}
	copy(h.campaign[:], bytes.Repeat([]byte{0xCC}, 32))
	want := "434153434944580a" + "06000000" + "00000000" + "0300000000000000" +
		"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc" + "00000000" + "c762427b"
	if got := hex.EncodeToString(encode(h)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if got, err := decode(encode(h)); err != nil || got != h {
		t.Errorf("%+v, %v", got, err)
	}
}

// What is cut or changed is refused.
func FuzzHeader(f *testing.F) {
	f.Add(encode(header{base: 9}))
	f.Fuzz(func(t *testing.T, p []byte) {
		if _, err := decode(p); err != nil && !errors.Is(err, ErrBadFormat) {
			t.Error(err)
		}
	})
}
