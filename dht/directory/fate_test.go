package directory

import "testing"

// TestFate: a home knows why a name has no copy while it remembers that.
func TestFate(t *testing.T) {
	for name, tc := range map[string]struct {
		lines []string
		want  Fate
	}{
		"never stated":        {nil, Fate{}},
		"there":               {[]string{"A put 10 X mem v 1"}, Fate{}},
		"withdrawn":           {[]string{"A put 10 X mem v 1", "A none v 2"}, Fate{}},
		"dead":                {[]string{"B put 10 X mem v 1", "lost B 1"}, Fate{Dead: true, Owner: 1}},
		"dead, in a segment":  {[]string{"B put 10 X mem seg v 1", "lost B 1"}, Fate{}},
		"dead, and another":   {[]string{"B put 10 X mem v 1", "A put 10 X mem v 2", "lost B 1"}, Fate{}},
		"deleted":             {[]string{"A put 10 X mem v 1", "bury 11", "A none v 2"}, Fate{Deleted: true}},
		"deleted, then dead":  {[]string{"A put 10 X mem v 1", "bury 11", "lost A 1"}, Fate{Deleted: true}},
		"deleted a while ago": {[]string{"A put 10 X mem v 1", "bury 11", "A none v 2", "wait 61"}, Fate{}},
	} {
		s := script{t: t, d: New(), now: start}
		for _, line := range tc.lines {
			s.step(line)
		}
		if got := s.d.Fate("ns", "k"); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
