package layout

// Settings are the words of a configuration that ask for a layout.
type Settings struct {
	StripeCount int    // 0: the file system's default, -1: all OSTs
	StripeSize  int64  // bytes; 0: the file system's default
	Pool        string // "": the directory's
	Setstripe   string // options of lfs setstripe, instead of the others
}

// Layout is what the settings ask for, valid; the zero layout when none is set.
// Errors are *OptionError values.
func (s Settings) Layout() (Layout, error) {
	plain := s.StripeCount != 0 || s.StripeSize != 0 || s.Pool != ""
	switch {
	case s.Setstripe != "" && plain:
		return Layout{}, &OptionError{Problem: "given next to stripe_count, stripe_size or pool", Remedy: "put everything into setstripe, or leave it empty"}
	case s.Setstripe != "":
		return Parse(s.Setstripe)
	case !plain:
		return Layout{}, nil
	}
	l := Plain(s.StripeCount, s.StripeSize, s.Pool)
	return l, l.Validate()
}
