package settings

import (
	"strconv"
	"strings"

	"github.com/agext/levenshtein"
)

// didYouMean is a sentence with the candidate nearest to the text, when one
// is near enough to be meant.
func didYouMean(text string, candidates []string) string {
	best, distance := "", len(text)/3+2
	for _, c := range candidates {
		if d := levenshtein.Distance(text, c, nil); d < distance {
			best, distance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return " Did you mean " + strconv.Quote(best) + "?"
}

// quoted lists the words in quotes.
func quoted(words []string) string {
	q := make([]string, len(words))
	for i, w := range words {
		q[i] = strconv.Quote(w)
	}
	return strings.Join(q, ", ")
}
