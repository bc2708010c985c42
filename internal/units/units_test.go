package units

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseBytes(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want Bytes
		err  string // a part of the message; "" for success
	}{
		"binary":               {in: "4GiB", want: 4 << 30},
		"small binary":         {in: "64KiB", want: 64 << 10},
		"bare letter":          {in: "4m", want: 4 << 20},
		"bare capital":         {in: "4M", want: 4 << 20},
		"decimal":              {in: "4GB", want: 4e9},
		"decimal small case":   {in: "4gb", want: 4e9},
		"fraction":             {in: "1.5GiB", want: 3 << 29},
		"fraction rounds":      {in: "0.3KiB", want: 307},
		"plain":                {in: "4294967296", want: 4 << 30},
		"bytes":                {in: "17B", want: 17},
		"zero":                 {in: "0", want: 0},
		"spaces":               {in: " 2 MiB ", want: 2 << 20},
		"largest":              {in: "9223372036854775807", want: 1<<63 - 1},
		"beyond largest":       {in: "9223372036854775808", err: "exceeds"},
		"beyond by unit":       {in: "8192PiB", err: "exceeds"},
		"negative":             {in: "-1GiB", err: "negative"},
		"empty":                {in: "", err: "does not start with a number"},
		"unit alone":           {in: "GiB", err: "does not start with a number"},
		"unknown unit":         {in: "4GiBs", err: `unknown unit "GiBs"`},
		"of Kubernetes":        {in: "16Mi", want: 16 << 20},
		"its fraction":         {in: "1.5Gi", want: 3 << 29},
		"its largest":          {in: "2ti", want: 2 << 40},
		"its space":            {in: "16 Mi", want: 16 << 20},
		"exponent":             {in: "1e9", want: 1e9},
		"exponent, fraction":   {in: "1.5E9", want: 15e8},
		"exponent and unit":    {in: "1e3k", want: 1000 << 10},
		"less than a byte":     {in: "1e-1", err: "fraction of a byte"},
		"exponent too large":   {in: "1e99", err: "exceeds"},
		"exponent of exponent": {in: "1e999999999", err: "unknown unit"},
		"no exponent":          {in: "1e", err: "unknown unit"},
		"hexadecimal":          {in: "0x10", err: "unknown unit"},
		"two points":           {in: "1.2.3k", err: "does not start with a number"},
		"fraction of a byte":   {in: "1.5", err: "fraction of a byte"},
		"absurdly long":        {in: strings.Repeat("9", 100), err: "100 characters"},
		"ratio is no number":   {in: "1/2", err: "unknown unit"},
		"underscore is no go":  {in: "1_000", err: "unknown unit"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseBytes(tc.in)
			if tc.err == "" {
				if err != nil || got != tc.want {
					t.Fatalf("ParseBytes(%q) = %d, %v; want %d", tc.in, got, err, tc.want)
				}
				return
			}
			if !errors.Is(err, ErrSize) || !strings.Contains(err.Error(), tc.err) || !strings.Contains(err.Error(), sizeRemedy) {
				t.Fatalf("ParseBytes(%q) = %d, %v; want an ErrSize saying %q and the remedy", tc.in, got, err, tc.err)
			}
		})
	}
}

func TestBytesText(t *testing.T) {
	for in, want := range map[Bytes]struct{ exact, human string }{
		0:          {"0", "0 B"},
		999:        {"999B", "999 B"},
		1000:       {"1000B", "0.98 KiB"},
		1024:       {"1KiB", "1.00 KiB"},
		3 << 29:    {"1536MiB", "1.50 GiB"},
		40 << 30:   {"40GiB", "40.0 GiB"},
		4<<30 + 1:  {"4294967297B", "4.00 GiB"},
		700 << 20:  {"700MiB", "700 MiB"},
		1<<63 - 1:  {"9223372036854775807B", "8192 PiB"},
		1024 * PiB: {"1024PiB", "1024 PiB"},
	} {
		if got := in.String(); got != want.exact {
			t.Errorf("Bytes(%d).String() = %q, want %q", int64(in), got, want.exact)
		}
		if got := in.Human(); got != want.human {
			t.Errorf("Bytes(%d).Human() = %q, want %q", int64(in), got, want.human)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want time.Duration
		text string
		err  string
	}{
		"seconds":       {in: "60", want: time.Minute, text: "1m"},
		"with unit":     {in: "250ms", want: 250 * time.Millisecond, text: "250ms"},
		"mixed":         {in: "1h30m", want: 90 * time.Minute, text: "1h30m"},
		"hours":         {in: "3600s", want: time.Hour, text: "1h"},
		"ten minutes":   {in: "10m0s", want: 10 * time.Minute, text: "10m"},
		"seconds stay":  {in: "70s", want: 70 * time.Second, text: "1m10s"},
		"zero":          {in: "0", want: 0, text: "0"},
		"plain number":  {in: "90", want: 90 * time.Second, text: "1m30s"},
		"last unit":     {in: "1m30", want: 90 * time.Second, text: "1m30s"},
		"last of hours": {in: "1h30", want: 90 * time.Minute, text: "1h30m"},
		"space":         {in: " 60 s ", want: time.Minute, text: "1m"},
		"spaces":        {in: "1 h 30 m", err: `"1 h 30 m"`},
		"fraction":      {in: "0.5", want: 500 * time.Millisecond, text: "500ms"},
		"after seconds": {in: "1s5", err: `"1s5"`},
		"two numbers":   {in: "1 30", err: `"1 30"`},
		"point alone":   {in: ".", err: `"."`},
		"negative":      {in: "-5s", err: "negative"},
		"no duration":   {in: "soon", err: `"soon"`},
		"empty":         {in: "", err: `""`},
		"too many":      {in: "9223372037", err: "exceeds"},
		"absurdly long": {in: strings.Repeat("9", 100), err: "100 characters"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseDuration(tc.in)
			if tc.err == "" {
				if err != nil || got.Std() != tc.want || got.String() != tc.text {
					t.Fatalf("ParseDuration(%q) = %v, %v; want %s", tc.in, got, err, tc.text)
				}
				return
			}
			if !errors.Is(err, ErrDuration) || !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("ParseDuration(%q) = %v, %v; want an ErrDuration saying %q", tc.in, got, err, tc.err)
			}
		})
	}
}

func TestFailedSetLeavesTheValue(t *testing.T) {
	b, d := 3*MiB, Duration(time.Hour)
	if b.UnmarshalText([]byte("many")) == nil || b != 3*MiB {
		t.Errorf("Bytes became %v", b)
	}
	if d.UnmarshalText([]byte("later")) == nil || d != Duration(time.Hour) {
		t.Errorf("Duration became %v", d)
	}
}

func FuzzBytes(f *testing.F) {
	for _, s := range []string{"4GiB", "1.5t", "0", "17B", "9e9", "00.10k", "-1", "8191.999PiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBytes(s)
		if err != nil {
			if !errors.Is(err, ErrSize) {
				t.Fatalf("ParseBytes(%q): %v does not match ErrSize", s, err)
			}
			return
		}
		if b < 0 {
			t.Fatalf("ParseBytes(%q) = %d", s, b)
		}
		if again, err := ParseBytes(b.String()); err != nil || again != b {
			t.Fatalf("%q reads as %d, writes as %q, which reads as %d, %v", s, b, b, again, err)
		}
	})
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"60", "1h30m", "0.5s", "-1s", "9223372036", "1m0s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDuration(s)
		if err != nil {
			if !errors.Is(err, ErrDuration) {
				t.Fatalf("ParseDuration(%q): %v does not match ErrDuration", s, err)
			}
			return
		}
		if again, err := ParseDuration(d.String()); err != nil || again != d {
			t.Fatalf("%q reads as %d, writes as %q, which reads as %d, %v", s, int64(d), d, int64(again), err)
		}
	})
}

func TestPorts(t *testing.T) {
	for in, want := range map[string]string{"": "", "20000-20100": "20000-20100", " 20000 - 20100 ": "20000-20100", "7946": "7946", "7946-7946": "7946", "1-65535": "1-65535"} {
		p, err := ParsePorts(in)
		if err != nil || p.String() != want {
			t.Errorf("ParsePorts(%q) = %v, %v; want %q", in, p, err, want)
		}
	}
	for _, in := range []string{"0", "0-10", "20100-20000", "20000-", "-1", "65536", "1-70000", "a-b", "1-2-3"} {
		p := Ports(7)
		if err := p.UnmarshalText([]byte(in)); !errors.Is(err, ErrPorts) || p != 7 {
			t.Errorf("%q: %v, %v", in, p, err)
		}
	}
	p, _ := ParsePorts("20000-20003")
	if p.Count() != 4 || p.First() != 20000 || p.Last() != 20003 || Ports(0).Count() != 0 {
		t.Errorf("%d ports from %d to %d", p.Count(), p.First(), p.Last())
	}
}
