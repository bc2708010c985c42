package main

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"

	"cascadekv/internal/arena"
	"cascadekv/internal/earlysignal"
	"cascadekv/internal/fault"
)

// watchEvery is how often the arena file is looked at.
const watchEvery = time.Second

// watchArena looks after the arena file until ctx ends: one that was truncated is
// given up, and one that lost its name is reported once.
func (r *openedRank) watchArena(ctx context.Context) {
	defer fault.Guard()()
	r.limits.Lock()
	again := r.config.Peers.Fabric != "mpi" // which can not be started twice in a process
	r.limits.Unlock()
	region := r.arena.tier.Region()
	first := uintptr(unsafe.Pointer(unsafe.SliceData(region)))
	fault.Handle(func(panicked any) {
		if addr, is := fault.Addr(panicked); is && addr-first < uintptr(len(region)) {
			r.loseArena(arena.ErrLost, again)
		}
		panic(panicked)
	})
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	linked := true
	for {
		if err := r.arena.tier.Check(); errors.Is(err, arena.ErrLost) {
			r.loseArena(err, again)
		}
		if linked && !r.arena.tier.FileLinked() {
			linked = false
			r.log.Error("arena file has lost its name: this rank and its upgrades keep all blocks, but clients that open the file by its path "+
				"copy through the socket, and after a kill nothing of it is found again; restart the rank when that suits (a clean end writes its blocks to lustre.dir)",
				"path", r.arena.keeper.Path())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// loseArena starts this program anew in the same process, since nothing in the
// arena may be served or touched any more; or, if it can not begin again, ends it. Any number of goroutines may call it,
// with whatever locks: it takes none of the rank's, and does not return.
func (r *openedRank) loseArena(why error, again bool) {
	r.lost.Do(func() {
		r.log.Error("arena file was truncated by another program: what only it had is lost, clients are disconnected, and the rank begins anew",
			"path", r.arena.keeper.Path(), "err", why)
		if !again || earlysignal.Ending() {
			os.Exit(exitFailure)
		}
		syscall.ForkLock.Lock()
		earlysignal.Stop()
		err := syscall.Exec(r.program.path, append([]string{r.program.path}, r.program.args...), os.Environ())
		r.log.Error("the rank can not begin anew: it ends", "program", r.program.path, "err", err)
		os.Exit(exitFailure)
	})
	select {} // another goroutine is at it
}
