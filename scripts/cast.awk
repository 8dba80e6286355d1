# Turns lines of a terminal into an animated SVG: milliseconds, a tab, the line.
# Each line appears at its time, and the picture scrolls as a terminal does.
# It plays at half the speed of the program, to be read; after the last line it rests, and begins again.

BEGIN { FS = "\t"; rows = 30; height = 17; width = 930; slow = 2; rest = 6000; n = 0 }

# The output until the story is over; the list of what to try would fill the screen.
/That was all/ { exit }
/Try in another terminal/ { skip = 1 }
skip && /\[1m1\. / { skip = 0 }
skip { next }
{
	at[n] = $1 * slow
	text = $0
	sub(/^[0-9]*\t/, "", text)
	sub(/\r$/, "", text)
	class = ""
	if (text ~ /^\033\[1m[0-9]+\. /) class = "h"
	else if (text ~ /^\033\[1m/) class = "b"
	else if (text ~ /^\033\[32m/) class = "g"
	else if (text ~ /^\033\[31m/) class = "r"
	else if (text ~ /^\033\[36m/) class = "c"
	else if (text ~ /^-- /) class = "y"
	gsub(/\033\[[0-9;]*m/, "", text)
	gsub(/&/, "\\&amp;", text)
	gsub(/</, "\\&lt;", text)
	gsub(/>/, "\\&gt;", text)
	line[n] = text
	kind[n] = class
	n++
}

END {
	total = at[n - 1] + rest
	printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"ui-monospace,Menlo,Consolas,monospace\" font-size=\"13\">\n", width, rows * height + 20
	print "<title>make demo: members, a config change, a host that leaves, and an outage of ZooKeeper</title>"
	print "<style>"
	print "svg>rect{fill:#0d1117}text{fill:#c9d1d9;white-space:pre}.h{fill:#fff;font-weight:bold}.b{font-weight:bold}.g{fill:#56d364}.r{fill:#ff7b72}.c{fill:#79c0ff}.y{fill:#e3b341}"
	# The texts of one time share an animation: invisible before it, and there from then on.
	groups = 0
	for (i = 0; i < n; i++)
		if (i == 0 || at[i] - from[groups - 1] > 150 * slow) { from[groups] = at[i]; first[groups++] = i }
	for (k = 0; k < groups; k++) {
		percent = 100 * from[k] / total
		printf "@keyframes k%d{0%%,%.2f%%{opacity:0}%.2f%%,100%%{opacity:1}}.k%d{animation:k%d %dms infinite}\n", k, percent, percent + 0.01, k, k, total
	}
	printf "@keyframes scroll{"
	for (k = 0; k < groups; k++) {
		last = (k + 1 < groups ? first[k + 1] : n)
		up = (last > rows ? (last - rows) * height : 0)
		printf "%.2f%%{transform:translateY(-%dpx)}", 100 * from[k] / total, up
	}
	printf "100%%{transform:translateY(-%dpx)}}.s{animation:scroll %dms infinite step-end}\n", up, total
	# Readers who want no motion see the end of it.
	printf "@media(prefers-reduced-motion){.s{animation:none;transform:translateY(-%dpx)}g g{animation:none}}\n", up
	print "</style>"
	printf "<rect width=\"100%%\" height=\"100%%\" rx=\"8\"/><svg x=\"14\" y=\"10\" width=\"%d\" height=\"%d\"><g class=\"s\">\n", width - 28, rows * height
	for (k = 0; k < groups; k++) {
		printf "<g class=\"k%d\">\n", k
		last = (k + 1 < groups ? first[k + 1] : n)
		for (i = first[k]; i < last; i++)
			if (line[i] != "") printf "<text%s y=\"%d\">%s</text>\n", (kind[i] == "" ? "" : " class=\"" kind[i] "\""), (i + 1) * height - 4, line[i]
		print "</g>"
	}
	print "</g></svg></svg>"
}
