package cascade

import (
	"errors"

	"cascadekv/cascade/losslog"
)

// Refused remembers that a put of a name found no room, if that is what err is; for those who
// reserve it before they know the name.
func Refused(s *Store, ns, key string, err error) {
	if err != nil {
		s.state.Mu.Lock()
		defer s.state.Mu.Unlock()
		refusedLocked(s, ns, key, err)
	}
}

func refusedLocked(s *Store, ns, key string, err error) {
	if errors.Is(err, ErrNoRoom) || errors.Is(err, ErrTooLarge) {
		s.state.Count.LostNameLocked(losslog.Refused, nil, ns, key)
	}
}
