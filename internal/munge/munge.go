package munge

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// MaxCredential is the greatest length of a credential for a payload of at most
// MaxPayload bytes, both in bytes.
const (
	MaxCredential = 1 << 10
	MaxPayload    = 64
)

var (
	// ErrAbsent: no munged answers here, or its programs are not installed.
	// Permanent until somebody starts one.
	ErrAbsent = errors.New("munge: no munged answers on this node")

	// ErrRefused: the credential is no proof: forged, seen before, expired, made
	// for something else or by another user. Asking again does not help.
	ErrRefused = errors.New("munge: not a credential of this user for this purpose")
)

// Client asks this node's munged. Its methods are safe for concurrent use.
type Client struct {
	socket   string
	encode   string
	decode   string
	identity string // of this process's user
}

// Find returns a client of the munged that listens at socket, or at the usual
// place if socket is empty, after it signed and verified something.
// Errors: ErrAbsent.
func Find(ctx context.Context, socket string) (*Client, error) {
	c := &Client{socket: socket, identity: strconv.Itoa(os.Geteuid())}
	var err error
	if c.encode, err = exec.LookPath("munge"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if c.decode, err = exec.LookPath("unmunge"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	payload := []byte(rand.Text())
	credential, err := c.Sign(ctx, payload)
	if err == nil {
		err = c.Verify(ctx, credential, payload)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	return c, nil
}

// Sign returns a credential that this process's user made for the payload, and
// that only processes of the same user can verify. It is the caller's.
func (c *Client) Sign(ctx context.Context, payload []byte) ([]byte, error) {
	if len(payload) > MaxPayload {
		return nil, fmt.Errorf("munge: a payload of %d bytes; %d is the most", len(payload), MaxPayload)
	}
	out, err := c.run(ctx, c.encode, hex.AppendEncode(nil, payload), "--restrict-uid="+c.identity)
	if err != nil {
		return nil, err
	}
	return bytes.TrimSpace(out), nil
}

// Verify is nil if this process's user made the credential for the payload, and
// it was not verified on this node before. Errors: ErrRefused; others say that
// munged could not be asked, and may pass.
func (c *Client) Verify(ctx context.Context, credential, payload []byte) error {
	if len(credential) == 0 {
		return fmt.Errorf("%w: it is empty", ErrRefused)
	}
	out, err := c.run(ctx, c.decode, credential, "--numeric", "--keys=UID", "--metadata=-", "--output=-")
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() >= badCredential {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return err
	}
	// "UID:", blanks, a number; an empty line; the payload.
	meta, body, _ := strings.Cut(string(out), "\n\n")
	uid, ok := strings.CutPrefix(meta, "UID:")
	if uid = strings.TrimSpace(uid); !ok || uid != c.identity {
		return fmt.Errorf("%w: user %q made it", ErrRefused, uid)
	}
	if subtle.ConstantTimeCompare([]byte(body), hex.AppendEncode(nil, payload)) != 1 {
		return fmt.Errorf("%w: it was made for something else", ErrRefused)
	}
	return nil
}

// badCredential is the first of unmunge's exit statuses that say something of
// the credential and not of munged: EMUNGE_BAD_CRED.
const badCredential = 8

// run feeds a program of MUNGE, and returns its output.
func (c *Client) run(ctx context.Context, program string, in []byte, args ...string) ([]byte, error) {
	if c.socket != "" {
		args = append(args, "--socket="+c.socket)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = bytes.NewReader(in)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(said.String()))
	}
	return out.Bytes(), nil
}
