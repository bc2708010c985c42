package rank

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/handover"
	"cascadekv/internal/server"
)

// Errors of an upgrade.
var (
	errNoUpgrade = errors.New("this rank can not be upgraded in place: restart it")
	errLeft      = errors.New("the program could not be started when the tiers were closed")
	errEnding    = errors.New("this rank was signalled to end")
)

const (
	// settleTimeout and leaveTimeout bound what an upgrade does with lustre while
	// clients wait: before and after it can be taken back.
	settleTimeout = 2 * time.Second
	leaveTimeout  = 5 * time.Second
)

// upgrade lets another program take this one's place. It returns only when that
// does not happen.
func (r *Rank) upgrade(ctx context.Context, u server.Upgrade) error {
	if r.peers != nil && r.peers.OverMPI() {
		return fmt.Errorf("%w: its fabric is MPI, which can not be started twice in a process", errNoUpgrade)
	}
	c, _ := r.settings.get()
	path, err := r.program.Successor(u.Binary, c.UpgradeTo)
	if err != nil {
		return err
	}
	version, err := r.program.Check(path, r.settings.get)
	if err != nil {
		return err
	}
	r.log.Info("upgrading", "binary", path, "version", version)
	return r.server.HandOver(ctx, u.Conn, func(st *handover.State) error { return r.become(path, st) })
}

// become turns this process into another program. Until the cold tier is closed
// everything can be taken back.
func (r *Rank) become(path string, st *handover.State) error {
	if !r.ending.TryLock() {
		return errEnding
	}
	defer r.ending.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	if err := r.store.Settle(ctx); err != nil {
		return fmt.Errorf("deletions are not yet recorded in lustre: %w; try again", err)
	}
	if r.peers != nil {
		st.Seeds = r.peers.Reached()
	}
	keeper := r.levels.arena.keeper
	st.Arena = handover.Arena{FD: int32(keeper.Fd()), Path: keeper.Path()}
	fd, err := handover.Write(st)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ctx, cancel = context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	ended, err := r.store.Leave(ctx)
	if err != nil {
		r.log.Warn("lustre is not closed in good order: the next program finds what a kill would have left", "err", err)
	}
	if err = r.program.Replace(path, st, fd); ended {
		err = fmt.Errorf("%w: %w; start the rank again: it finds what is in memory", errLeft, err)
		r.fail(err)
	}
	return err
}
