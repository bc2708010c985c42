package tcp

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/munge"
	"cascadekv/internal/testing/mungetest"
)

// tampered is an authority whose credentials are not what they should be.
type tampered struct {
	Authority
	sign func(good []byte) []byte
}

func (a tampered) Sign(ctx context.Context, payload []byte) ([]byte, error) {
	good, err := a.Authority.Sign(ctx, payload)
	return a.sign(good), err
}

func TestCredentials(t *testing.T) {
	find := func(socket string) *munge.Client {
		m, err := munge.Find(t.Context(), socket)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	here, elsewhere := find(mungetest.Start(t)), find(mungetest.Start(t))
	var once []byte
	again := func(good []byte) []byte {
		if once == nil {
			once = good
		}
		return once
	}
	for name, c := range map[string]struct {
		caller, owner   Authority
		require, demand bool // by the caller, by the owner
		want            error
		text            string
	}{
		"both":                       {caller: here, owner: here},
		"both, required":             {caller: here, owner: here, require: true, demand: true},
		"the caller only":            {caller: here},
		"the owner only":             {owner: here},
		"the caller requires it":     {caller: here, require: true, want: fabric.ErrRefused, text: "no munged answers where rank 1"},
		"the owner requires it":      {owner: here, demand: true, want: fabric.ErrUnreachable},
		"another cluster's caller":   {caller: elsewhere, owner: here, want: fabric.ErrUnreachable},
		"an empty one":               {caller: tampered{here, func([]byte) []byte { return nil }}, owner: here, want: fabric.ErrUnreachable},
		"too long":                   {caller: tampered{here, func([]byte) []byte { return make([]byte, 1<<16) }}, owner: here, want: fabric.ErrUnreachable},
		"an owner's of another time": {caller: here, owner: tampered{here, again}, want: fabric.ErrRefused, text: "munge"},
		"an owner's empty one":       {caller: here, owner: tampered{here, func([]byte) []byte { return nil }}, want: fabric.ErrRefused, text: "0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(1, 1)
			o.Authority, o.RequireAuthority, o.OpenTimeout = c.owner, c.demand, time.Second
			var told observer
			o.Observe = told.observe
			owner, _ := serve(t, o)
			if strings.HasSuffix(name, "of another time") {
				_, _ = c.owner.Sign(t.Context(), []byte("the first")) // which again keeps
			}
			o = options(0, 1)
			o.Authority, o.RequireAuthority = c.caller, c.require
			f := start(t, o)
			f.SetPeer(as(owner))
			answer, err := f.Call(soon(t), 1, []byte("e"))
			if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("a call was answered %q, error %v, want %v with %q", answer, err, c.want, c.text)
			}
			if c.want == fabric.ErrUnreachable { // the owner closed the stream, and says why
				told.wait(t, "")
			}
		})
	}
	if _, err := New(Options{Secret: []byte(secret), RequireAuthority: true}); err == nil {
		t.Error("an authority was required of the others by who has none")
	}
}

// Credentials that were cut off, or announce more than is sent, end a handshake.
func TestCredentialOnTheWire(t *testing.T) {
	id := golden()
	for name, wire := range map[string]string{
		"nothing": "", "half a length": "\x05", "no length": "\x00\x00", "cut": "\x05\x00abc", "long": "\x01\x04" + strings.Repeat("x", 1025),
	} {
		id.authority = nil // it is not asked
		if err := id.readCredential(t.Context(), bytes.NewBufferString(wire), nil); !errors.Is(err, fabric.ErrRefused) && !errors.Is(err, fabric.ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
