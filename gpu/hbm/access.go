package hbm

import (
	"context"
	"fmt"
	"sync"

	"cascadekv/gpu/cuda"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// access is a slot or a pin. One goroutine at a time may use it.
type access struct {
	tiers.Hidden
	tier *Tier
	room *room
	size int64 // as info.Size is
	slot bool  // until it is committed

	// spoiled is why a copy into the slot failed. It may still be under way, and
	// would change what is written now.
	spoiled error
	end     sync.Once
}

// copies names the bytes of the block from from on that host has room for, as one
// copy for each unit.
func (a *access) copies(from int64, host []byte, toHost bool) []cuda.Copy {
	unit := a.tier.unit
	list := make([]cuda.Copy, 0, int64(len(host))/unit+2)
	for len(host) > 0 {
		in := from % unit
		n := min(unit-in, int64(len(host)))
		at := a.tier.pool + cuda.DevicePtr(int64(a.room.units[from/unit])*unit+in)
		list = append(list, cuda.Copy{Device: at, Host: host[:n], ToHost: toHost})
		host, from = host[n:], from+n
	}
	return list
}

// move copies between the block's bytes from at on and host memory, directly where
// that is registered, and otherwise by each: it is called with each piece of the
// copier's memory, before it goes to the device, or after it came.
func (a *access) move(ctx context.Context, at int64, host []byte, size int64, toHost bool, each func(copier []byte, done int64)) error {
	if size == 0 {
		return nil
	}
	if a.spoiled != nil {
		return a.tier.failed(fmt.Errorf("an earlier copy into the slot failed, abort it: %w", a.spoiled))
	}
	e := a.tier.engine
	cp, err := e.take(ctx)
	if err != nil {
		return a.tier.failed(err)
	}
	if host != nil && e.registered(host) {
		e.direct.Add(size)
		err = e.copy(context.Background(), cp, a.copies(at, host, toHost), nil)
		e.give(cp)
		if err != nil {
			return a.broken(err, toHost)
		}
		return nil
	}
	for done := int64(0); done < size; {
		piece := cp.memory[:min(size-done, int64(len(cp.memory)))]
		if !toHost {
			each(piece, done)
		}
		e.bounced.Add(int64(len(piece)))
		if err := e.copy(ctx, cp, a.copies(at+done, piece, toHost), a.keep); err != nil {
			return a.broken(err, toHost) // copy has, or will have, given the copier back
		}
		if toHost {
			each(piece, done)
		}
		done += int64(len(piece))
	}
	e.give(cp)
	return nil
}

// broken makes the error of a copy one of the tier.
func (a *access) broken(err error, toHost bool) error {
	if !toHost {
		a.spoiled = err
	}
	return a.tier.failed(err)
}

// keep holds the units until the function it returns is called.
func (a *access) keep() func() {
	a.tier.mu.Lock()
	a.tier.holdLocked(a.room)
	a.tier.mu.Unlock()
	return func() { a.tier.drop(a.room) }
}

// CRC implements tiers.Payload.
func (a *access) CRC(crc uint32, from, to int64) (uint32, error) {
	err := a.move(context.Background(), from, nil, to-from, true, func(piece []byte, _ int64) { crc = block.ExtendCRC(crc, piece) })
	return crc, err
}

// Hash implements tiers.Payload.
func (a *access) Hash(h *block.Hasher, from, to int64) error {
	return a.move(context.Background(), from, nil, to-from, true, func(piece []byte, _ int64) { h.Write(piece) })
}

// Info implements tiers.Pin.
func (a *access) Info() block.Info {
	a.tier.mu.Lock()
	defer a.tier.mu.Unlock()
	return a.room.info
}

// ReadInto implements tiers.Pin.
func (a *access) ReadInto(ctx context.Context, dst []byte) error {
	var crc uint32
	err := a.move(ctx, 0, dst, a.size, true, func(piece []byte, done int64) { crc = block.CopyCRC(crc, dst[done:][:len(piece)], piece) })
	if err != nil {
		return err
	}
	if a.tier.engine.registered(dst) {
		crc = block.ExtendCRC(0, dst)
	}
	info := a.Info()
	if crc == info.CRC {
		return nil
	}
	a.tier.mu.Lock()
	a.tier.forgetLocked(a.room)
	a.tier.mu.Unlock()
	return fmt.Errorf("%s: block %v: %w", Name, info.ID, tiers.ErrCorrupt)
}

// Write implements tiers.Slot.
func (a *access) Write(crc uint32, at int64, p []byte) (uint32, error) {
	return a.write(context.Background(), crc, at, p)
}

func (a *access) write(ctx context.Context, crc uint32, at int64, p []byte) (uint32, error) {
	if a.tier.engine.registered(p) {
		crc = block.ExtendCRC(crc, p)
	}
	err := a.move(ctx, at, p, int64(len(p)), false, func(piece []byte, done int64) { crc = block.CopyCRC(crc, piece, p[done:][:len(piece)]) })
	return crc, err
}

// CopyFrom implements tiers.Slot. A block that the process addresses is verified on
// its way; one in a file is read into pinned memory where that has room for it.
func (a *access) CopyFrom(ctx context.Context, src tiers.Pin) error {
	info := src.Info()
	if info.Size != a.size {
		return fmt.Errorf("%s: a block of %d bytes for a slot of %d: %w", Name, info.Size, a.size, tiers.ErrTooLarge)
	}
	if p := src.Bytes(); p != nil {
		crc, err := a.write(ctx, 0, 0, p)
		if err == nil && crc != info.CRC {
			err = fmt.Errorf("%s: block %v, as it came: %w", Name, info.ID, tiers.ErrCorrupt)
		}
		return err
	}
	if _, own := src.(*access); own || a.size > int64(a.tier.engine.bufferBytes) || a.size == 0 { // a device's takes a copier itself
		host := make([]byte, a.size)
		if err := src.ReadInto(ctx, host); err != nil {
			return err
		}
		_, err := a.write(ctx, 0, 0, host)
		return err
	}
	var read error
	err := a.move(ctx, 0, nil, a.size, false, func(piece []byte, _ int64) { read = src.ReadInto(ctx, piece) })
	if read != nil { // what went to the device is nothing
		return read
	}
	return err
}

// Commit implements tiers.Slot.
func (a *access) Commit(info block.Info, _ []block.Name) error {
	defer a.Release()
	t := a.tier
	if a.spoiled != nil {
		return t.failed(a.spoiled)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch err := t.usableLocked(); {
	case err != nil:
		return err
	case !a.slot || t.mu.blocks[info.ID] != nil:
		return fmt.Errorf("%s: block %v: %w", Name, info.ID, tiers.ErrExists)
	}
	a.slot, a.room.stored, a.room.info = false, true, info
	t.mu.blocks[info.ID], t.mu.stays[a.room.stay] = a.room, a.room
	t.mu.payload += info.Size
	return nil
}

// Abort implements tiers.Slot.
func (a *access) Abort() { a.Release() }

// Release implements tiers.Pin.
func (a *access) Release() { a.end.Do(func() { a.tier.drop(a.room) }) }
