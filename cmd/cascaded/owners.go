package main

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"cascadekv/internal/config"
	"cascadekv/lustre"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/trust"
	"cascadekv/tiers"
)

// groupOf is the number of the group that shares lustre.dir; 0: none does.
func groupOf(c config.Lustre) (int, error) {
	id, err := trust.GroupID(c.Group)
	if err != nil {
		return 0, fmt.Errorf("lustre.group = %q: %w", c.Group, err)
	}
	return id, nil
}

// logExposed warns of a directory in which anybody can do anything.
func logExposed(c config.Lustre, a segment.Access, log *slog.Logger) {
	if a.Exposed {
		log.Warn("anybody can rename and remove what lies in lustre.dir, and put files there, which are not read: chmod o-w it, or at least chmod +t it",
			"dir", c.Dir)
	}
}

// refusedEvery is how often, at most, it is said that files of others are refused.
const refusedEvery = time.Minute

// refusedLog says how much in lustre.dir was not read because of whose it is: in
// one line, when it has become more.
type refusedLog struct {
	log *slog.Logger

	mu   sync.Mutex
	said int
	when time.Time
}

// look says what is new.
func (l *refusedLog) look(cold tiers.Tier) {
	t, ok := cold.(*lustre.Tier)
	if !ok {
		return
	}
	r := t.Refused()
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Files <= l.said || time.Since(l.when) < refusedEvery {
		return
	}
	l.said, l.when = r.Files, time.Now()
	l.log.Warn("files in lustre.dir that are not this user's, or that others can change, are refused: their blocks are misses; "+
		"remove them, or chown them if they are yours, or name the group that shares the directory in lustre.group; cascade fsck names them all",
		"refused", r.Files, "first", strings.Join(r.First, "; "))
}

// watch looks until done is closed.
func (l *refusedLog) watch(done <-chan struct{}, cold tiers.Tier) {
	tick := time.NewTicker(refusedEvery)
	defer tick.Stop()
	for {
		l.look(cold)
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}
