package server

import (
	"fmt"
	"strings"
	"testing"

	"cascadekv/internal/glob"
)

func TestLongPatternsAreRefused(t *testing.T) {
	r := newRig(t, 16<<20)
	c := r.client("unix")
	longest, longer := strings.Repeat("/", glob.MaxPattern), strings.Repeat("/", glob.MaxPattern+1)
	for _, args := range [][]string{{"SCAN", "0", "MATCH"}, {"CONFIG", "GET"}} {
		if _, err := c.Do(append(args, longest)...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		if _, err := c.Do(append(args, longer)...); code(err) != "ERR" || !strings.Contains(fmt.Sprint(err), "1024 bytes") {
			t.Errorf("%v, longer: %v", args, err)
		}
	}
}
