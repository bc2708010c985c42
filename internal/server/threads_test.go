package server

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestTaskLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"no /proc": {nil, math.MaxUint64},
		"none":     {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/pids.max": "max\n"}, math.MaxUint64},
		"version 2, the group above": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/pids.max": "300\n", "sys/fs/cgroup/a/b/pids.max": "max\n"}, 300},
		"version 1": {map[string]string{
			"proc/self/cgroup": "8:pids:/a\n4:memory:/m\n0::/\n", "sys/fs/cgroup/pids/a/pids.max": "200\n", "sys/fs/cgroup/memory/m/pids.max": "1\n"}, 200},
		"path of another namespace": {map[string]string{"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/pids.max": "100\n"}, 100},
	} {
		root := t.TempDir()
		for file, text := range tc.files {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := taskLimit(root); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	if n := connectionThreads(); n < 8 || n > maxThreads {
		t.Errorf("%d threads", n)
	}
}
