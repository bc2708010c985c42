package resp

import (
	"errors"
	"strings"
	"testing"
)

// TestOtherProtocols: bytes of HTTP and TLS are recognized at the first one that
// settles it, and commands that look alike are commands.
func TestOtherProtocols(t *testing.T) {
	for in, want := range map[string]error{
		"GET / HTTP/1.1\r\n":                ErrHTTP,
		"OPTIONS * HTTP/1.0\r\n":            ErrHTTP,
		"PRI * HTTP/2.0\r\n":                ErrHTTP,
		"CONNECT a:1 HTTP/1.1\n":            ErrHTTP,
		"post /x\r\n":                       ErrHTTP,
		"Host: a\r\n":                       ErrHTTP,
		"\x16":                              ErrTLS,
		"\x16\x03\x01\x02\x00\x01":          ErrTLS,
		"GET HTTP/1.1\r\n":                  nil,
		"SET k HTTP/1.1\r\n":                nil,
		"get / HTTP/1.1\r\n":                nil,
		"*2\r\n$3\r\nGET\r\n$1\r\n\x16\r\n": nil,
	} {
		_, err := NewReader(strings.NewReader(in)).Next(nil)
		if !errors.Is(err, want) || want != nil && !errors.Is(err, ErrProtocol) {
			t.Errorf("%q: %v, want %v", in, err, want)
		}
		if errors.Is(err, ErrHTTP) && errors.Is(err, ErrTLS) {
			t.Errorf("%q is both", in)
		}
	}
	if _, err := NewReader(strings.NewReader("*x\r\n")).Next(nil); errors.Is(err, ErrHTTP) || errors.Is(err, ErrTLS) {
		t.Errorf("neither: %v", err)
	}
}
