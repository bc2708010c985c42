package server

import (
	"errors"

	"cascadekv/cascade"
	"cascadekv/internal/block"
	"cascadekv/internal/netio"
)

const (
	// sendVerified is the size from which a value is checksummed while it is
	// sent instead of before.
	sendVerified = 128 << 10

	// sendPiece is sent at a time and then checksummed, while it is in the
	// core's cache and the client copies it out on another core.
	sendPiece = 512 << 10

	// sendLast is the least that is sent at a time. Pieces become smaller
	// towards the end: what the client still has to copy out when the last
	// one is verified and sent is what it waits for.
	sendLast = 64 << 10
)

// send sends a view's bytes with everything that was collected before. Unless
// verify is nil, for bytes that were verified before, the last piece leaves only
// when verify accepts the checksum of all of them; if it does not, the connection
// ends in the middle of the value, so that no client takes what it got for a block.
func (c *conn) send(v *cascade.View, verify func(crc uint32) bool) {
	defer v.Release()
	c.sending = v
	defer func() { c.sending = nil }()
	zeroCopy := c.srv.opt.ZeroCopy && v.ZeroCopy()
	c.wr.BulkHeader(v.Size())
	crc := uint32(0)
	for p := v.Bytes(); len(p) > 0; {
		piece := p[:min(len(p), sendPiece, max(len(p)/2, sendLast))]
		p = p[len(piece):]
		if len(p) == 0 && verify != nil && !verify(block.ExtendCRC(crc, piece)) {
			c.srv.log.Error("connection is ended in the middle of a corrupt block", "conn", c.id, "block", v.ID())
			c.wr.Discard()
			c.quit = true
			return
		}
		if c.sendPart(piece, len(p) == 0, &zeroCopy) != nil {
			c.quit = true
			return
		}
		if len(p) > 0 && verify != nil {
			crc = block.ExtendCRC(crc, piece)
		}
	}
}

// sendPart sends a piece of a value behind what was collected, by reference as
// long as zeroCopy is true and the kernel does so. What ends the value is appended to
// the last piece.
func (c *conn) sendPart(p []byte, last bool, zeroCopy *bool) error {
	if *zeroCopy {
		if err := c.flush(); err != nil {
			return err
		}
		n, err := c.sock.SendZeroCopy(p)
		c.srv.counters.zeroCopy.Add(uint64(n))
		if last && err == nil {
			c.wr.CRLF()
		}
		if !errors.Is(err, netio.ErrNotZeroCopy) {
			return err
		}
		*zeroCopy = false
		p = p[n:]
	}
	c.wr.Ref(p)
	if last {
		c.wr.CRLF()
	}
	return c.flush()
}
