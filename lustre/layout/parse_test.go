package layout

import (
	"errors"
	"strings"
	"testing"
)

func TestParseAsLfs(t *testing.T) {
	const m, g = 1 << 20, 1 << 30
	one := func(c Component) []Component { return []Component{c} }
	for line, want := range map[string][]Component{
		"-c 16":                           one(Component{Count: 16}),
		"-c16 -S4m":                       one(Component{Count: 16, Size: 4 * m}),
		"--stripe-count 16":               one(Component{Count: 16}),
		"--stripe-count=16":               one(Component{Count: 16}),
		"--stripe_count=0x10":             one(Component{Count: 16}),
		"--stripe-c 3":                    one(Component{Count: 3}),
		"-c -1":                           one(Component{Count: AllOSTs}),
		"-c 0":                            one(Component{}),
		"-S 64k":                          one(Component{Size: 64 << 10}),
		"-S 64":                           one(Component{Size: 64 << 10}), // below 4096 it is KiB
		"-S 65536":                        one(Component{Size: 64 << 10}),
		"-S 0x400000":                     one(Component{Size: 4 * m}),
		"-S 128b":                         one(Component{Size: 64 << 10}), // sectors
		"-S 65536c":                       one(Component{Size: 64 << 10}),
		"-c 0 -E 64M -C 3 -E eof":         {{End: 64 * m, Count: 3, Overstripe: true}, {End: EOF, Count: 3}},
		"-S .5m":                          one(Component{Size: m / 2}),
		"-S 4.m":                          one(Component{Size: 4 * m}),
		"-E 64M -c 0 -c 2 -E eof":         {{End: 64 * m, Count: 2}, {End: EOF, Count: 2}},
		"-S 64k -E 1M -L mdt -E eof":      {{End: m, OnMDT: true}, {End: EOF}},
		"-E 1M -L mdt -S 1M -E eof":       {{End: m, OnMDT: true}, {End: EOF}},
		"-E 1M -L mdt -L raid0 -E eof":    {{End: m, OnMDT: true}, {End: EOF}},
		"-S 1.5M":                         one(Component{Size: 3 * m / 2}),
		"-S 4MiB":                         one(Component{Size: 4 * m}),
		"-S 4MB":                          one(Component{Size: 4 * m}),
		"-S 1G":                           one(Component{Size: g}),
		"-p flash":                        one(Component{Pool: "flash"}),
		"-p scratch.flash":                one(Component{Pool: "flash"}),
		"--pool=flash -c 2":               one(Component{Pool: "flash", Count: 2}),
		"-p ignore":                       one(Component{Pool: "ignore"}),
		"-p inherit -c 2":                 one(Component{Count: 2}),
		"-p '' -c 2":                      one(Component{Count: 2}),
		`-p "flash"`:                      one(Component{Pool: "flash"}),
		"-i -1 -c 2":                      one(Component{Count: 2}),
		"-i-1 -c 2":                       one(Component{Count: 2}),
		"-C 8":                            one(Component{Count: 8, Overstripe: true}),
		"--overstripe-count -2":           one(Component{Count: -2, Overstripe: true}),
		"-L raid0 -c 2":                   one(Component{Count: 2}),
		"-E -1":                           one(Component{End: EOF}),
		"-E eof -c 2":                     one(Component{End: EOF, Count: 2}),
		"-E EOF -c 2":                     one(Component{End: EOF, Count: 2}),
		"  -c\t4\n-S 4m ":                 one(Component{Count: 4, Size: 4 * m}),
		"-E 64M -c 1 -E -1 -c 16 -S 4m":   {{End: 64 * m, Count: 1}, {End: EOF, Count: 16, Size: 4 * m}},
		"-E 64M -c1 -E 1G -c4 -E -1 -c16": {{End: 64 * m, Count: 1}, {End: g, Count: 4}, {End: EOF, Count: 16}},
		"--component-end 1M -L mdt --comp-end=eof -c 2": {{End: m, OnMDT: true}, {End: EOF, Count: 2}},
		"-c 4 -S 1m -E 64M -E eof":                      {{End: 64 * m, Count: 4, Size: m}, {End: EOF, Count: 4, Size: m}},             // taken over
		"-E 64M -c 1 -p flash -E eof -c 2":              {{End: 64 * m, Count: 1, Pool: "flash"}, {End: EOF, Count: 2, Pool: "flash"}}, // the pool too
		"-E 64M -c 1 -p flash -E eof -c 2 -p ignore":    {{End: 64 * m, Count: 1, Pool: "flash"}, {End: EOF, Count: 2, Pool: "ignore"}},
		"-E 64M -C 8 -E eof":                            {{End: 64 * m, Count: 8, Overstripe: true}, {End: EOF, Count: 8}}, // but not that OSTs may repeat
		"-E 1M -c 0 -L mdt -E eof":                      {{End: m, OnMDT: true}, {End: EOF}},
		"-E 64 -c 1 -E eof -c 2":                        {{End: 64 << 10, Count: 1}, {End: EOF, Count: 2}},
	} {
		l, err := Parse(line)
		if err != nil || !l.Equal(Layout{want}) {
			t.Errorf("%q: got %+v, %v; want %+v", line, l.Components, err, want)
			continue
		}
		again, err := Parse(l.Options())
		if err != nil || !again.Equal(l) {
			t.Errorf("%q is written as %q, which is read as %+v, %v", line, l.Options(), again.Components, err)
		}
	}
}

func TestParseErrorsNameOptionAndRemedy(t *testing.T) {
	for line, want := range map[string][]string{
		"":                           {"no options", "-c 4 -S 4m"},
		"   ":                        {"no options"},
		"lfs setstripe -c 4":         {"lfs: not an option", "without \"lfs setstripe\""},
		"-c 4 /scratch":              {"/scratch: not an option", "without a file name"},
		"-c":                         {"-c: its value is missing"},
		"-c four":                    {"-c four: not a number", "-1 for all OSTs"},
		"-c 4.5":                     {"-c 4.5: not a number"},
		"-c -2":                      {"-c -2: not a number of stripes"},
		"-c -2 -S 4m -c 2":           {"-c -2: not a number of stripes"},
		"-E 64M -c 0 -E eof -c 2":    {"-c 0: nothing that a component can have"},
		"-E 64M -c 2 -E eof -c 0":    {"-c 0: nothing that a component can have"},
		"-E 64M -S 1m -E eof -S 0":   {"-S 0: nothing that a component can have"},
		"-S 100000 -S 4m":            {"-S 100000: not a multiple"},
		"-S .m":                      {"-S .m: not a size"},
		"-S m":                       {"-S m: not a size"},
		"-c 1_0":                     {"-c 1_0: not a number"},
		"-c 08":                      {"-c 08: not a number"},
		"-c 2001":                    {"-c 2001", "2000"},
		"-C -33":                     {"-C -33"},
		"-S 100000":                  {"-S 100000: not a multiple of 64 KiB", "4m"},
		"-S 4":                       {"-S 4K: not a multiple of 64 KiB"},
		"-S 4G":                      {"-S 4G: not a multiple of 64 KiB below 4 GiB"},
		"-S -4m":                     {"-S -4m: not a size"},
		"-S 4x":                      {"-S 4x: not a size"},
		"-S 4mm":                     {"-S 4mm: not a size"},
		"-S 99999999999999999999":    {"not a size"},
		"-S 9999999999g":             {"not a size"},
		"-p a-name-that-is-too-long": {"-p a-name-that-is-too-long: 23 bytes", "at most 15", "pool_list"},
		"-p fl!sh":                   {"not a plain name"},
		"-i 3 -c 2":                  {"-i 3: every segment would begin on one OST", "man lfs-setstripe"},
		"--stripe-index=3":           {"-i 3: every segment", "leave it out"},
		"-o 1,2":                     {"-o 1,2: ", "-p with a pool"},
		"-N2 -c 1":                   {"-N 2: each byte would be written twice"},
		"-E 1G -c 1 -z 64M":          {"-z 64M: ", "set such a default on the directory"},
		"--yaml=x.lyl":               {"-y x.lyl: "},
		"-d":                         {"-d: ", "lfs setstripe -d DIRECTORY"},
		"-q":                         {"-q: not an option", "-c, -C, -S, -p, -E and -L"},
		"--quiet":                    {"--quiet: not an option"},
		"--stripe 4":                 {"--stripe: may mean several"},
		"-":                          {"-: not an option"},
		"--":                         {"--: not an option"},
		"-L mdt":                     {"-L mdt: the whole file on the metadata server", "-E 1M -L mdt -E eof -c 4"},
		"-L flash":                   {"-L flash: no layout that lfs knows"},
		"-E 1M -c 1 -E eof -L mdt":   {"-L mdt: not the first component"},
		"-E 1M -L mdt -c 2 -E eof":   {"-L mdt: with options for OSTs"},
		"-E 2G -L mdt -E eof -c 1":   {"-E 2G: too much for the metadata server"},
		"-E 64M -c 1":                {"-E 64M: the last component ends before the file may", "-E eof"},
		"-E eof -c 1 -E 64M -c 2":    {"-E eof: not the last component", "-E 64M: the last component"},
		"-E 1G -c 1 -E 64M -E eof":   {"-E 64M: not behind the end of the component before, 1G"},
		"-E 100000 -c 1 -E eof":      {"-E 100000: not a multiple of 64 KiB"},
		"-E 0 -c 1":                  {"-E 0: not the end of a component"},
		"-E 1M -c 1 -S 4M -E eof":    {"-E 1M: not a multiple of the stripe size 4M"},
		"-E soon":                    {"-E soon: not the end of a component", "eof"},
		"-p 'flash":                  {"quote"},
	} {
		_, err := Parse(line)
		if !errors.Is(err, ErrOption) {
			t.Errorf("%q: %v", line, err)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %q does not say %q", line, err, part)
			}
		}
	}
}

func TestSizesWriteBack(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 64 << 10: "64K", 4 << 20: "4M", 3 << 19: "1536K", 1 << 30: "1G", 5 << 40: "5T", 4097: "4097"} {
		got := formatSize(n)
		back, ok := parseSize(got)
		if got != want || !ok || back != n {
			t.Errorf("%d is written %q and read as %d, want %q", n, got, back, want)
		}
	}
}

func TestCommand(t *testing.T) {
	l, err := Parse("-E 64M -c 1 -p flash -E eof -c 16 -S 4m -p inherit")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/scratch/a":      "lfs setstripe -E 64M -c 1 -p flash -E eof -c 16 -S 4M -p inherit /scratch/a",
		"/scratch/it's a": `lfs setstripe -E 64M -c 1 -p flash -E eof -c 16 -S 4M -p inherit '/scratch/it'\''s a'`,
		"-x":              "lfs setstripe -E 64M -c 1 -p flash -E eof -c 16 -S 4M -p inherit '-x'",
	} {
		if got := l.Command(path); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	if got := (Layout{}).Command("/x"); got != "" {
		t.Errorf("nothing asked for: %q", got)
	}
}

func TestWarnings(t *testing.T) {
	for line, want := range map[string]string{
		"-c 8 -S 4m":                         "",
		"-c 73":                              "73 stripes",
		"-c -1":                              "every OST",
		"-S 64k":                             "stripes of 64K",
		"-C 4":                               "overstriping",
		"-E 64M -c 1 -E 1G -c 4 -E -1 -c 80": "from 1G on is never reached",
		"-E 1M -L mdt -E eof -c 4":           "metadata server",
	} {
		l, err := Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(l.Warnings(1<<30), "; ")
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func TestSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		s    Settings
		want string // options, or the error
		bad  bool
	}{
		"nothing":     {Settings{}, "", false},
		"plain":       {Settings{StripeCount: 16, StripeSize: 4 << 20, Pool: "flash"}, "-c 16 -S 4M -p flash", false},
		"only a pool": {Settings{Pool: "flash"}, "-p flash", false},
		"a line":      {Settings{Setstripe: "-E 64M -c 1 -E -1 -c 16 -S 4m"}, "-E 64M -c 1 -E eof -c 16 -S 4M", false},
		"both":        {Settings{StripeCount: 4, Setstripe: "-c 4"}, "next to stripe_count", true},
		"bad size":    {Settings{StripeSize: 1000}, "-S 1000: not a multiple", true},
		"bad line":    {Settings{Setstripe: "-c x"}, "-c x: not a number", true},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := tc.s.Layout()
			if tc.bad != errors.Is(err, ErrOption) {
				t.Fatalf("err %v", err)
			}
			if tc.bad && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v does not say %q", err, tc.want)
			}
			if !tc.bad && l.Options() != tc.want {
				t.Errorf("got %q, want %q", l.Options(), tc.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, r := range requests {
		f.Add(r.line)
	}
	f.Add("--stripe-count=4 -S 1.5M -p 'a' -E 64M -E -1")
	f.Fuzz(func(t *testing.T, line string) {
		l, err := Parse(line)
		if err != nil {
			return
		}
		again, err := Parse(l.Options())
		if err != nil || !again.Equal(l) {
			t.Fatalf("%q is %+v, written %q, read as %+v: %v", line, l.Components, l.Options(), again.Components, err)
		}
		b, err := l.Encode()
		if err != nil {
			t.Fatalf("%q is valid and not encoded: %v", line, err)
		}
		g, err := Decode(b)
		if err != nil || !g.Layout().Equal(l) {
			t.Fatalf("%q: %+v became %+v: %v", line, l, g.Layout(), err)
		}
	})
}
