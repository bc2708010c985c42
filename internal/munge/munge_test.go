package munge_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cascadekv/internal/munge"
	"cascadekv/internal/testing/mungetest"
)

func find(t *testing.T, socket string) *munge.Client {
	t.Helper()
	c, err := munge.Find(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func sign(t *testing.T, c *munge.Client, payload []byte) []byte {
	t.Helper()
	credential, err := c.Sign(t.Context(), payload)
	if err != nil {
		t.Fatal(err)
	}
	return credential
}

func TestVerify(t *testing.T) {
	socket := mungetest.Start(t)
	c, elsewhere := find(t, socket), find(t, mungetest.Start(t))
	payload := bytes.Repeat([]byte{0, '\n', 0xFF, ' '}, munge.MaxPayload/4)

	good := sign(t, c, payload)
	if len(good) > munge.MaxCredential {
		t.Errorf("a credential of %d bytes, more than %d", len(good), munge.MaxCredential)
	}
	if err := c.Verify(t.Context(), good, payload); err != nil {
		t.Fatal(err)
	}
	another := sign(t, c, payload)
	another[len(another)/2] ^= 1
	for name, bad := range map[string][]byte{
		"seen before":             good,
		"changed":                 another,
		"for something else":      sign(t, c, []byte("something else")),
		"of another cluster":      sign(t, elsewhere, payload),
		"no credential":           []byte("MUNGE:nonsense:"),
		"an option of unmunge":    []byte("--help"),
		"nothing":                 nil,
		"of another user":         asUser(t, socket, payload),
		"with its payload's head": sign(t, c, payload[:8]),
	} {
		if err := c.Verify(t.Context(), bad, payload); !errors.Is(err, munge.ErrRefused) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

// asUser returns a credential that another user made, which only root can do
// here.
func asUser(t *testing.T, socket string, payload []byte) []byte {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	cmd := exec.Command("munge", "--uid=1", "--socket="+socket)
	cmd.Stdin = strings.NewReader(string(payload))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(out)
}

// What cannot be asked is no refusal.
func TestAbsent(t *testing.T) {
	c := find(t, mungetest.Start(t))
	if _, err := munge.Find(t.Context(), "/nowhere/socket"); !errors.Is(err, munge.ErrAbsent) {
		t.Errorf("no socket: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	credential := sign(t, c, []byte("x"))
	cancel()
	if err := c.Verify(ended, credential, []byte("x")); !errors.Is(err, context.Canceled) || errors.Is(err, munge.ErrRefused) {
		t.Errorf("under an ended context: %v", err)
	}
	if _, err := c.Sign(t.Context(), make([]byte, munge.MaxPayload+1)); err == nil {
		t.Error("too long a payload was signed")
	}
}
