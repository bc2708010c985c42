package manual

import (
	"fmt"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"

	"cascadekv/internal/config"
)

// Configuration returns cascade.toml(5), made of a sample configuration that has
// every key, commented out and below its comment, and begins with a comment on
// the whole.
func Configuration(sample string, date time.Time) ([]byte, error) {
	p := newPage("cascade.toml", 5, date, "Configuration of a CASCADE rank and of the tool that talks to it")
	p.section("SYNOPSIS")
	for _, name := range []string{"/cascade.toml", "/conf.d/*.toml"} {
		fmt.Fprintf(p, "*%s*\n\n", plain(config.SystemDir+name))
	}
	missing := map[string]bool{}
	for _, k := range config.Keys() {
		missing[k.Path] = true
	}
	var comment []string
	table, begun := "", false
	for line := range strings.SplitSeq(sample, "\n") {
		text, isComment := strings.CutPrefix(line, "# ")
		name, value, isKey := strings.Cut(strings.TrimPrefix(line, "#"), " = ")
		switch {
		case line == "#":
			comment = append(comment, "")
		case isComment:
			comment = append(comment, text)
		case strings.HasPrefix(line, "["):
			table = strings.Trim(line, "[]")
			fmt.Fprintf(p, "\n# [%s]\n", strings.ToUpper(plain(table)))
			table += "."
		case isKey:
			k, ok := config.Lookup(table + name)
			if !ok {
				return nil, fmt.Errorf("%s%s is no key", table, name)
			}
			delete(missing, k.Path)
			p.term(fmt.Sprintf("**%s** = %s", plain(k.Path), plain(value)),
				strings.Join(comment, " "), fmt.Sprintf("Variable %s, flag --%s.", k.Env(), k.Flag()))
			comment = nil
		case !begun:
			p.section("DESCRIPTION")
			p.text(strings.Join(comment, "\n"))
			p.section("KEYS")
			comment, begun = nil, true
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("without the keys %v", missing)
	}
	p.section("SEE ALSO")
	p.seeAlso("cascade.toml(5)")
	return md2man.Render([]byte(p.String())), nil
}
