package failure

import "fmt"

// Text is the text of an error. about and remedy may be empty; a result of 0 is none
// of the library's and is left out.
func Text(call, about string, why error, result int32, remedy string) string {
	text := call
	if about != "" {
		text += " of " + about
	}
	text += fmt.Sprintf(": %v", why)
	if result != 0 {
		text += fmt.Sprintf(" (%d)", result)
	}
	if remedy != "" {
		text += ": " + remedy
	}
	return text
}
