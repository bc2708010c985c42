package preflight

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"cascadekv/internal/config"
	"cascadekv/internal/vfs"
)

// quotaPatience bounds how long lfs may take: it asks all servers.
const quotaPatience = 10 * time.Second

// quota looks how much of the user's quota is left on the Lustre file system of the cold
// tier. One of a project shows as the file system's own size, which is checked anyway.
func (m Machine) quota(c *config.Config) Check {
	const name = "quota"
	dir := c.Lustre.Dir
	if dir == "" {
		return Okay(name, "not needed: lustre.dir is not set")
	}
	dir = existing(dir)
	if s, err := m.statfs(dir); err != nil || s.Type != vfs.LustreType {
		return Okay(name, "not asked for: %s is not on Lustre", dir)
	}
	if _, err := m.lookPath("lfs"); err != nil {
		return Okay(name, "not known: lfs is not installed")
	}
	ctx, cancel := context.WithTimeout(context.Background(), quotaPatience)
	defer cancel()
	text, err := m.run(ctx, "lfs", "quota", "-q", "-u", strconv.Itoa(m.uid), dir)
	if err != nil {
		return Okay(name, "not known: lfs quota: %v", err)
	}
	q, err := readQuota(text)
	segment := uint64(c.Lustre.SegmentBytes)
	switch {
	case err != nil:
		return Okay(name, "not known: %v", err)
	case q.limit > 0 && q.left() < segment, q.fileLimit > 0 && q.files >= q.fileLimit:
		return Failure(name, "remove files, ask for more, or set lustre.budget: lfs quota -u "+strconv.Itoa(m.uid)+" "+dir, "%s: the next segment cannot be written", q)
	case q.limit > 0 && q.left() < 10*segment, q.limit > 0 && c.Lustre.Budget > 0 && q.left() < uint64(c.Lustre.Budget):
		return Warning(name, "remove files, ask for more, or set lustre.budget to what is left", "%s: less than the tier may take", q)
	}
	return Okay(name, "%s", q)
}

// usedQuota is what a user has on a file system, and may have: 0 for no limit.
type usedQuota struct {
	used, limit      uint64 // bytes
	files, fileLimit uint64
}

func (q usedQuota) left() uint64 { return q.limit - min(q.used, q.limit) }

// String is for people.
func (q usedQuota) String() string {
	limit := func(n uint64, text string) string {
		if n == 0 {
			return "without a limit"
		}
		return "of " + text
	}
	return fmt.Sprintf("%s used %s, %d files %s", size(q.used), limit(q.limit, size(q.limit)), q.files, limit(q.fileLimit, strconv.FormatUint(q.fileLimit, 10)))
}

// readQuota reads what lfs quota -q prints: the file system, KiB used, soft and hard limit, grace, and files
// likewise. A number above its limit has a star.
func readQuota(text string) (q usedQuota, err error) {
	words := strings.Fields(text)
	if len(words) < 9 {
		return q, fmt.Errorf("lfs quota prints %q", text)
	}
	for i, to := range map[int]*uint64{1: &q.used, 3: &q.limit, 5: &q.files, 7: &q.fileLimit} {
		if *to, err = strconv.ParseUint(strings.Trim(words[i], "*[]"), 10, 64); err != nil {
			return q, fmt.Errorf("lfs quota prints %q: %w", text, err)
		}
	}
	if max(q.used, q.limit) > math.MaxUint64/1024 {
		return q, fmt.Errorf("lfs quota prints %q", text)
	}
	q.used, q.limit = 1024*q.used, 1024*q.limit
	return q, nil
}
