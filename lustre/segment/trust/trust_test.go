package trust

import (
	"errors"
	"fmt"
	"testing"

	"cascadekv/internal/vfs"
)

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		users Users
		file  vfs.Stat
		read  bool
	}{
		"own":                       {Users{UID: 7}, vfs.Stat{UID: 7, Mode: 0o600}, true},
		"root's":                    {Users{UID: 7}, vfs.Stat{UID: 0, Mode: 0o600}, true},
		"a stranger's":              {Users{UID: 7}, vfs.Stat{UID: 8, Mode: 0o600}, false},
		"one of several users":      {Users{UID: 7, Also: []uint32{8}}, vfs.Stat{UID: 8, Mode: 0o600}, true},
		"own, all may write":        {Users{UID: 7}, vfs.Stat{UID: 7, Mode: 0o602}, false},
		"own, a group may write":    {Users{UID: 7}, vfs.Stat{UID: 7, GID: 5, Mode: 0o660}, false},
		"the group's":               {Users{UID: 7, Group: 5}, vfs.Stat{UID: 8, GID: 5, Mode: 0o660}, true},
		"the group's, open to all":  {Users{UID: 7, Group: 5, Open: true}, vfs.Stat{UID: 8, GID: 5, Mode: 0o660}, false},
		"another group's":           {Users{UID: 7, Group: 5}, vfs.Stat{UID: 8, GID: 6, Mode: 0o660}, false},
		"no group, and that file's": {Users{UID: 7}, vfs.Stat{UID: 8, GID: 0, Mode: 0o660}, false},
	} {
		if err := c.users.Judge(c.file); (err == nil) != c.read || err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNoteCountsOnce: each file counts once, and some are named.
func TestNoteCountsOnce(t *testing.T) {
	g := None("/dir")
	if g.Note("/dir/other", errors.New("I/O error")) || g.HasRefused() {
		t.Error("an error of the file system counts")
	}
	for i := range 2 * 5 {
		if !g.Note(fmt.Sprintf("/dir/file%d", i%5), fmt.Errorf("open: %w", ErrRefused)) {
			t.Error("a refused file does not count")
		}
	}
	if r := g.Refused(); r.Files != 5 || len(r.First) != Named || r.First[0] != "file0: open: "+ErrRefused.Error() {
		t.Errorf("%+v", r)
	}
}
