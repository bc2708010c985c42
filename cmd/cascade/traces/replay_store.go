package traces

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"cascadekv/cascade"
	"cascadekv/internal/replay"
	"cascadekv/internal/trace"
	"cascadekv/internal/units"
	"cascadekv/lustre"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// maxReplayRanks bounds the ranks of one process: each has an arena of its own.
const maxReplayRanks = 64

// inProcess returns a maker of targets: each one store, or several ranks that
// share its capacity, on tiers that are made for it and removed with it.
func (f replayFlags) inProcess(info trace.Info, shmDir string, clock *replay.Clock) func(context.Context, string) (replay.Target, error) {
	return func(ctx context.Context, policy string) (replay.Target, error) {
		blocks := max(1, int64(f.shares[0]*float64(info.UniqueBlocks)))
		if f.ranks > 1 {
			return f.openRanks(ctx, shmDir, policy, blocks, clock)
		}
		s := &scratchTiers{shmDir: shmDir, clock: clock}
		store, err := s.open(ctx, f, policy, blocks)
		if err != nil {
			return nil, errors.Join(err, s.remove())
		}
		return f.target(store, s, blocks, nil), nil
	}
}

// target makes a target of a store on s; leave, if not nil, is called before
// the store is closed.
func (f replayFlags) target(store *cascade.Store, s *scratchTiers, blocks int64, leave func() error) replay.Target {
	return replay.NewStoreTarget(store, replay.StoreOptions{
		BlockBytes: int(f.blockBytes), CapacityBytes: blocks * int64(f.blockBytes),
		Close: func(context.Context) error {
			var err error
			if leave != nil {
				err = leave()
			}
			return errors.Join(err, s.close(store), s.remove())
		},
	})
}

// scratchTiers are the files of one in-process rank.
type scratchTiers struct {
	shmDir string // where the arena goes
	arena  string
	dir    string // of the lustre tier; one of another rank's if shared
	shared bool
	rank   int
	clock  *replay.Clock // of the policies
}

// open makes the tiers with room for so many blocks in shm, and a store on
// them.
func (s *scratchTiers) open(ctx context.Context, f replayFlags, policy string, blocks int64) (*cascade.Store, error) {
	file, err := os.CreateTemp(s.shmDir, "cascade-replay-*.arena")
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	s.arena = file.Name()
	// The tier makes the file itself; only the name had to be found.
	if err := errors.Join(file.Close(), os.Remove(s.arena)); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	payload := blocks * int64(f.blockBytes)
	memory, err := shm.Open(s.arena, arenaFor(payload))
	if err != nil {
		return nil, fmt.Errorf("replay: room for %d blocks of %s in %s: %w; lower --block-bytes or --capacity",
			blocks, f.blockBytes, s.shmDir, err)
	}
	o := cascade.Options{
		Memory: []tiers.Memory{memory}, Policy: policy, Capacity: payload, Clock: s.clock.Now,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if !f.noLustre {
		if !s.shared {
			s.dir, err = os.MkdirTemp(f.lustreDir, "cascade-replay-")
		}
		if err == nil {
			o.Cold, err = lustre.Open(lustre.Options{Dir: s.dir, Rank: uint32(s.rank)})
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("replay: lustre tier: %w; --no-lustre does without", err), memory.Close())
		}
	}
	return cascade.Open(ctx, o)
}

// arenaFor is the size of an arena that has room for payload bytes of blocks
// whatever their size class wastes.
func arenaFor(payload int64) int64 { return payload + payload/2 + int64(64*units.MiB) }

// close ends the store without draining: nobody reads the files again.
func (s *scratchTiers) close(store *cascade.Store) error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := store.Close(ended); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (s *scratchTiers) remove() error {
	var err error
	if s.arena != "" {
		if e := os.Remove(s.arena); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = e
		}
	}
	if s.dir != "" && !s.shared {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}
