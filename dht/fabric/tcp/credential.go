package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"cascadekv/dht/fabric"
	"cascadekv/internal/munge"
)

// hasAuthority in a greeting says that its sender asks for a credential and
// gives one, if the other side does.
const hasAuthority = 1

// maxCredential bounds what a peer can make us read, in bytes.
const maxCredential = munge.MaxCredential

// sendCredential proves as which user we run. The payload is our code of this
// handshake, so that the credential is worth nothing in another.
func (id *identity) sendCredential(ctx context.Context, w io.Writer, code []byte) error {
	credential, err := id.authority.Sign(ctx, code)
	if err != nil {
		return fmt.Errorf("a credential for the other side: %w", err)
	}
	if len(credential) > maxCredential {
		return fmt.Errorf("a credential of %d bytes; %d is the most", len(credential), maxCredential)
	}
	b := binary.LittleEndian.AppendUint16(nil, uint16(len(credential)))
	if _, err := w.Write(append(b, credential...)); err != nil {
		return fmt.Errorf("sending a credential: %w", err)
	}
	return nil
}

// readCredential verifies the other side's, made for its code of this
// handshake. Errors: ErrRefused, ErrUnreachable.
func (id *identity) readCredential(ctx context.Context, r io.Reader, code []byte) error {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return fmt.Errorf("reading a credential: %w: %w", fabric.ErrUnreachable, err)
	}
	n := binary.LittleEndian.Uint16(size[:])
	if n == 0 || n > maxCredential {
		return fmt.Errorf("%w: a credential of %d bytes", fabric.ErrRefused, n)
	}
	credential := make([]byte, n)
	if _, err := io.ReadFull(r, credential); err != nil {
		return fmt.Errorf("reading a credential: %w: %w", fabric.ErrUnreachable, err)
	}
	switch err := id.authority.Verify(ctx, credential, code); {
	case errors.Is(err, munge.ErrRefused):
		return fmt.Errorf("%w: %w", fabric.ErrRefused, err)
	case err != nil:
		return fmt.Errorf("%w: %w", fabric.ErrUnreachable, err)
	}
	return nil
}
