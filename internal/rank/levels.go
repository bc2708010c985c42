package rank

import (
	"errors"
	"fmt"
	"log/slog"

	"cascadekv/cascade"
	"cascadekv/gpu/nvme"
	"cascadekv/internal/config"
	"cascadekv/internal/handover"
	"cascadekv/internal/preflight"
	"cascadekv/lustre"
	"cascadekv/tiers/host"
	"cascadekv/tiers/memory"
)

// levels are the tiers that a configuration asks for, and the read buffers. The
// store owns the tiers once it is open, but not the file of the arena.
type levels struct {
	arena   *arenaFile
	host    *memory.Tier    // nil: none
	nvme    *nvme.Tier      // nil: none
	cold    *lustre.Tier    // nil: none
	buffers *memory.Buffers // for blocks of other ranks that are not kept; nil without peers
}

// openLevels opens the tiers, the arena as it was handed over if it was. job is that of Options; successor: this process was a
// rank before, as another program.
func openLevels(c config.Config, job uint64, st *handover.State, successor bool, log *slog.Logger) (l *levels, err error) {
	l = &levels{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if c.Peers.Fabric != "off" {
		if l.buffers, err = memory.NewBuffers(int64(c.Peers.ReadBuffer)); err != nil {
			return l, err
		}
	}
	if len(c.NVMe.Paths) > 0 {
		if l.nvme, err = openNVMe(c.NVMe, log); err != nil {
			return l, err
		}
	}
	left := l.left(preflight.Here(nil).Left)
	if l.arena, err = openArena(c.Shm, job, left, st, log); err != nil {
		return l, err
	}
	if c.Host.Bytes > 0 {
		l.host, err = memory.Open(memory.Options{Name: host.Name, Bytes: int64(c.Host.Bytes), Left: left})
		if err != nil {
			return l, err
		}
	}
	if c.Lustre.Dir != "" {
		if l.cold, err = openLustre(c, successor, log); err != nil {
			return l, err
		}
	}
	return l, nil
}

// left is how much memory the tiers may still take of what the process may: buffers
// get theirs when they are used, and must find it then.
func (l *levels) left(of func() (int64, string)) func() (int64, string) {
	buffers, disks := l.buffers, l.nvme
	return func() (int64, string) {
		left, what := of()
		if buffers != nil {
			untouched := buffers.Untouched()
			left, what = left-untouched, fmt.Sprintf("%s, and %d for blocks of other ranks", what, untouched)
		}
		if disks != nil {
			untouched := disks.Untouched()
			left, what = left-untouched, fmt.Sprintf("%s, and %d for blocks on their way to and from nvme", what, untouched)
		}
		return max(0, left), what
	}
}

// close ends a start that failed before the store owned the tiers.
func (l *levels) close() error {
	var err error
	if l.host != nil {
		err = l.host.Close()
	}
	if l.nvme != nil {
		err = errors.Join(err, l.nvme.Close())
	}
	if l.cold != nil {
		err = errors.Join(err, l.cold.Close())
	}
	if l.arena != nil {
		err = errors.Join(err, l.arena.tier.Close())
		l.arena.abandon()
	}
	return errors.Join(err, l.closeBuffers())
}

func (l *levels) closeBuffers() error {
	if l.buffers == nil {
		return nil
	}
	return l.buffers.Close()
}

// into sets the tiers of a store's options.
func (l *levels) into(o *cascade.Options) {
	if l.host != nil {
		o.Memory = append(o.Memory, l.host)
	}
	o.Memory = append(o.Memory, l.arena.tier)
	if l.nvme != nil {
		o.Memory = append(o.Memory, l.nvme)
	}
	if l.cold != nil {
		o.Cold = l.cold
	}
	if l.buffers != nil {
		o.ReadBuffers = func(size int64) ([]byte, func(), bool) {
			room, ok := l.buffers.Take(size)
			if !ok {
				return nil, nil, false
			}
			return room.Bytes(), room.Release, true
		}
	}
}
