package directory

// words keeps one copy of each string that many statements share: namespaces
// and segment paths come anew with every message.
type words map[string]string

// maxWords bounds what is kept; what is dropped stays in use where it is.
const maxWords = 1 << 12

func (w *words) one(s string) string {
	if s == "" {
		return ""
	}
	if known, ok := (*w)[s]; ok {
		return known
	}
	if *w == nil || len(*w) >= maxWords {
		*w = words{}
	}
	(*w)[s] = s
	return s
}

// share makes a statement use strings that are kept already.
func (w *words) share(s *Statement) {
	s.Name.Namespace = w.one(s.Name.Namespace)
	if s.Segment != nil {
		at := *s.Segment
		at.Path = w.one(at.Path)
		s.Segment = &at
	}
}
