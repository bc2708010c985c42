package rank

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"cascadekv/cascade"
	"cascadekv/internal/arena"
	"cascadekv/internal/config"
	"cascadekv/internal/fault"
	"cascadekv/internal/handover"
	"cascadekv/tiers"
	"cascadekv/tiers/memory"
	"cascadekv/tiers/shm"
)

// arenaFile is the rank's arena from its opening until it is decided what becomes
// of the file. It holds the lock on the file beyond the end of the tier. It belongs
// to the goroutine that opens or ends the rank.
type arenaFile struct {
	tier   *memory.Tier
	region []byte // its memory, as mapped
	keeper *arena.Keeper
	log    *slog.Logger
}

// openArena opens the arena, the one that was handed over if there is one. left is as in
// memory.Options.
func openArena(c config.Shm, job uint64, left func() (int64, string), st *handover.State, log *slog.Logger) (*arenaFile, error) {
	o := memory.Options{Name: shm.Name, Path: c.Path, Job: job, Bytes: int64(c.Bytes), File: st.ArenaFile(), Left: left}
	if o.File != nil {
		o.Path = o.File.Name()
	}
	for _, c := range st.Claims {
		o.Held = append(o.Held, tiers.HeldRange{Offset: c.Offset, Size: c.Size, CRC: c.CRC, Slot: c.Stage})
	}
	t, err := memory.Open(o)
	if errors.Is(err, arena.ErrNoShare) {
		logOthers(log, c.Path, slog.LevelWarn)
	}
	if err != nil {
		return nil, err
	}
	a := &arenaFile{tier: t, region: t.Region(), log: log}
	if a.keeper, err = t.KeepFile(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	a.logOpened()
	go a.logGrowth()
	return a, nil
}

// logOpened logs what was found at the arena's path, unless it is as expected.
func (a *arenaFile) logOpened() {
	o := a.tier.Opened()
	for _, err := range o.Passed {
		a.log.Warn("the arena gets another name: something else has this one, and is left alone", "path", o.Path, "err", err)
	}
	if o.GivenUp > 0 {
		a.log.Warn("arena file was damaged: all that only it had is lost, and it is used anew", "path", o.Path, "bytes", o.GivenUp)
	}
	kept := a.tier.Usage()
	switch {
	case o.Resized > 0:
		a.log.Info("arena file has another size now: its blocks were copied", "path", o.Path, "from", o.Resized, "to", o.Size, "blocks", kept.Blocks, "bytes", kept.Payload)
	case o.NotResized != nil:
		a.log.Warn("arena file keeps its size, not that of shm.bytes, because it holds blocks: a clean end with a lustre directory, "+
			"or cascade arena rm while the rank is down, lets the next start have the size", "path", o.Path, "size", o.Size,
			"shm_bytes", o.Wanted, "blocks", kept.Blocks, "bytes", kept.Payload, "err", o.NotResized)
	}
	go logOthers(a.log, o.Path, slog.LevelInfo)
}

// namedOthers is how many old arenas a log line names.
const namedOthers = 3

// logOthers logs, in one line, which arenas that no rank uses take room where the
// one at path is, the largest first.
func logOthers(log *slog.Logger, path string, level slog.Level) {
	dir := filepath.Dir(path)
	found, err := shm.List(dir)
	if err != nil {
		log.Warn("old arena files are not looked for", "dir", dir, "err", err)
		return
	}
	found = slices.DeleteFunc(found, func(f shm.Arena) bool { return f.State == shm.Live || f.Path == path })
	if len(found) == 0 {
		return
	}
	slices.SortFunc(found, func(x, y shm.Arena) int { return cmp.Compare(y.Allocated, x.Allocated) })
	var bytes int64
	var named []string
	for _, f := range found {
		bytes += f.Allocated
		if len(named) < namedOthers {
			named = append(named, fmt.Sprintf("%s (uid %d, %d bytes, %s)", f.Path, f.UID, f.Allocated, f.State))
		}
	}
	log.Log(context.Background(), level, "arena files that no rank uses, as far as is known, take room here: cascade arena list shows them, cascade arena rm gives them up",
		"files", len(found), "bytes", bytes, "largest", strings.Join(named, ", "))
}

// abandon is for a start that failed, once the tier is closed: a file that it made
// goes, one that it found stays.
func (a *arenaFile) abandon() {
	if a.tier.Opened().Made {
		a.remove()
	}
	_ = a.keeper.Close() // at the end of the process at the latest
}

func (a *arenaFile) remove() bool {
	if err := a.keeper.Unlink(); err != nil {
		a.log.Error("arena file could not be removed; cascade arena rm does it", "path", a.keeper.Path(), "err", err)
		return false
	}
	return true
}

// end decides what becomes of the file when the rank has ended: it goes unless it
// has something that is nowhere else, or is to be kept. s is the store after its
// end, blocks is how many the arena held, and failed why the drain is incomplete.
func (a *arenaFile) end(c config.Config, s cascade.Stats, blocks int, failed error) {
	const advice = "; the next rank takes it over, cascade arena rm gives it up"
	log, o := a.log.With("path", a.keeper.Path(), "bytes", a.keeper.Allocated()), a.tier.Opened()
	switch {
	case c.Lustre.Dir != "" && s.DirtyBlocks == 0 && failed != nil:
		log.Warn("arena file stays: the drain failed"+advice, "err", failed)
	case c.Lustre.Dir != "" && s.DirtyBlocks > 0:
		log.Warn("arena file stays: blocks in it are nowhere else"+advice, "dirty_blocks", s.DirtyBlocks, "dirty_bytes", s.DirtyBytes)
	case c.Lustre.Dir == "" && blocks > 0:
		log.Info("arena file stays: without lustre.dir its blocks are nowhere else"+advice, "blocks", blocks)
	case c.Shm.Keep && o.Size == o.Wanted:
		log.Info("arena file stays, as shm.keep asks" + advice)
	default:
		if a.remove() {
			log.Info("arena file removed: nothing was only there")
		}
	}
	_ = a.keeper.Close()
}

// logGrowth logs once that others left shm no room for all that is configured, and
// whose old arenas take it; and once that the arena has grown. The end of the tier
// ends it.
func (a *arenaFile) logGrowth() {
	ctx := context.Background()
	err := a.tier.WaitReady(ctx)
	if err == nil || errors.Is(err, tiers.ErrClosed) {
		return
	}
	logOthers(a.log, a.keeper.Path(), slog.LevelWarn)
	ready, wanted, _ := a.tier.Ready()
	a.log.Error("shm is smaller than configured, and grows when there is room", "ready", ready, "configured", wanted, "err", err)
	if a.tier.WaitGrown(ctx) == nil {
		a.log.Info("shm has grown to what is configured", "bytes", wanted)
	}
}

// checkEvery is how often the arena file is looked at.
const checkEvery = time.Second

// watch looks after the arena file until ctx ends, or until it was truncated, which
// it returns. It logs once that the file has lost its name.
func (a *arenaFile) watch(ctx context.Context) error {
	defer fault.Guard()()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	linked := true
	for {
		if err := a.tier.Check(); errors.Is(err, arena.ErrLost) {
			return err
		}
		if linked && !a.tier.FileLinked() {
			linked = false
			a.log.Error("arena file has lost its name: this rank and its upgrades keep all blocks, but clients that open the file by its path "+
				"copy through the socket, and after a kill nothing of it is found again; restart the rank when that suits (a clean end writes its blocks to lustre.dir)",
				"path", a.keeper.Path())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// faulted returns an error if a panic is that of a touch of arena memory that is
// gone. It is safe for concurrent use, with any locks held.
func (a *arenaFile) faulted(panicked any) error {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(a.region)))
	if addr, is := fault.Addr(panicked); is && addr-first < uintptr(len(a.region)) {
		return fmt.Errorf("%s: %w", a.keeper.Path(), arena.ErrLost)
	}
	return nil
}
