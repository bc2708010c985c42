package members

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// The proofs were computed apart from this package, with Python's hmac.
func TestGoldenProof(t *testing.T) {
	k, err := newStreamKey([]byte("0123456789abcdef"), "job 7")
	if err != nil {
		t.Fatal(err)
	}
	hello := func(first byte) (h hello) {
		copy(h[:], "CASCADEG\x01\x00")
		for i := range h[streamPrefix:] {
			h[streamPrefix+i] = first + byte(i)
		}
		return h
	}
	opener, accepter := hello(0), hello(0x80)
	for role, want := range map[string]string{
		roleOpener:   "c59fdc00df3c0300938bc0b7c43db442ff995dcc1aeecb0162ae6e2e597ec4d4",
		roleAccepter: "f5562dd7af9c218f05d0aa5e3a4c05f49c6391049f4d39733c6918f96b684e8e",
	} {
		if p := k.proof(role, &opener, &accepter); hex.EncodeToString(p[:]) != want {
			t.Errorf("%s: %x, want %s", role, p, want)
		}
	}
	if text := fmt.Sprintf("%v %+v %#v", k, k, k); strings.Contains(text, "0x") || strings.Contains(text, hex.EncodeToString(k[:4])) {
		t.Errorf("the key is printed: %s", text)
	}
}

// script is a side that says what it says, whatever it hears.
type script struct {
	io.Reader
	io.Writer
}

// TestProofs: two sides with one key agree; whoever has another one, sends back
// what it hears or speaks something else is refused, with the reason.
func TestProofs(t *testing.T) {
	key := func(secret, job string) *streamKey {
		k, err := newStreamKey([]byte(secret), job)
		if err != nil {
			t.Fatal(err)
		}
		return &k
	}
	mine := key("sixteen bytes and more", "job")
	for name, c := range map[string]struct {
		opener, accepter *streamKey
		want             error
	}{
		"one":            {mine, mine, nil},
		"another secret": {key("another sixteen bytes", "job"), mine, errProof},
		"another job":    {mine, key("sixteen bytes and more", "other"), errProof},
	} {
		a, b := net.Pipe()
		accepted := make(chan error, 1)
		go func() {
			defer b.Close()
			accepted <- c.accepter.accept(b)
		}()
		if err := c.opener.open(a); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: open: %v, want %v", name, err, c.want)
		}
		_ = a.Close()
		if err := <-accepted; (err == nil) != (c.want == nil) {
			t.Errorf("%s: accept: %v", name, err)
		}
	}
	h := newHello()
	later := bytes.Clone(h[:])
	later[8] = 2
	for name, c := range map[string]struct {
		bytes string
		want  error
	}{
		"an earlier version": {string(announcement()) + strings.Repeat("x", 100), errStranger},
		"a later version":    {string(later) + strings.Repeat("x", 100), errVersion},
		"cut off":            {string(h[:20]), io.ErrUnexpectedEOF},
		"no proof":           {string(h[:]), io.EOF},
		"a mirror":           {string(h[:]) + strings.Repeat("x", proofSize), errProof},
		"nothing":            {"", io.EOF},
	} {
		if err := mine.accept(script{strings.NewReader(c.bytes), io.Discard}); !errors.Is(err, c.want) {
			t.Errorf("accept, %s: %v, want %v", name, err, c.want)
		}
		if err := mine.open(script{strings.NewReader(c.bytes), io.Discard}); !errors.Is(err, c.want) {
			t.Errorf("open, %s: %v, want %v", name, err, c.want)
		}
	}
	var heard bytes.Buffer
	if err := mine.open(script{io.MultiReader(strings.NewReader(string(h[:]))), &heard}); err == nil {
		t.Error("a stream without a proof was opened")
	}
	if heard.Len() != helloSize {
		t.Errorf("an opener sent %d bytes before the other side had proved anything", heard.Len())
	}
}
