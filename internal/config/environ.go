package config

import (
	"fmt"
	"slices"
	"strings"
)

// maxListed bounds how many variables one warning names.
const maxListed = 8

// ignored returns the warnings about variables of env that begin like those of
// this package and set no key. A batch system, Kubernetes (which sets
// CASCADE_SERVICE_HOST and CASCADE_PORT for a service "cascade") or another
// program may have set them, so they are no errors; one that is spelt nearly
// like a key is named with it.
func ignored(env []string) (warnings []string) {
	valid := []string{FileEnv}
	for _, k := range allKeys {
		valid = append(valid, k.Env())
	}
	var foreign []string
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		upper := strings.ToUpper(name)
		if !strings.HasPrefix(upper, EnvPrefix) || slices.Contains(valid, name) {
			continue
		}
		switch best := nearest(name, valid); {
		case near(upper, best):
			warnings = append(warnings, fmt.Sprintf("environment: the variable %s is ignored: did you mean %s?", name, best))
		case name == upper && len(name) <= maxName:
			foreign = append(foreign, name)
		}
	}
	if n := len(foreign); n > 0 {
		slices.Sort(foreign)
		list := strings.Join(foreign[:min(n, maxListed)], ", ")
		if n > maxListed {
			list += fmt.Sprintf(" and %d more", n-maxListed)
		}
		warnings = append(warnings, "environment: these variables are ignored, they set no key: "+list)
	}
	return warnings
}

// maxName is the length of the longest name of a variable that is listed, in
// bytes.
const maxName = 100

// near reports whether a name is probably a misspelt form of a valid variable:
// about one change in four letters, without the prefix that both have.
func near(name, valid string) bool {
	return 4*distance(name, valid) <= len(valid)-len(EnvPrefix)
}
