/* svg.c - see svg.h. Sizes are in units of the viewBox; the page scales it. */
#include "bench/svg.h"

#include <math.h>
#include <stdio.h>

#include "bench/view.h"

enum { BAR_H = 22, BAR_GAP = 10, NAME_W = 118, BAR_W = 262, WIDTH = 500 };
enum { PLOT_W = 500, PLOT_H = 240, LEFT = 52, RIGHT = 16, TOP = 26, BOTTOM = 40 };

void svg_text(struct buf *out, struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c == '&')
            buf_addz(out, "&amp;");
        else if (c == '<')
            buf_addz(out, "&lt;");
        else if (c == '>')
            buf_addz(out, "&gt;");
        else if (c == '"')
            buf_addz(out, "&quot;");
        else if (c == '\'')
            buf_addz(out, "&#39;");
        else
            buf_addc(out, c < 0x20 || c == 0x7f ? ' ' : (char)c);
    }
}

double svg_step(double range, int n)
{
    if (!(range > 0) || !isfinite(range))
        return 1;
    double raw = range / n, ten = pow(10, floor(log10(raw)));
    double m = raw / ten;
    return ten * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

/* A number for a tick: no more places than the step needs. */
static void tick_text(struct buf *out, double v, double step)
{
    int places = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
    if (fabs(v) >= 10000)
        buf_addf(out, "%.*fk", step >= 1000 ? 0 : 1, v / 1000);
    else
        buf_addf(out, "%.*f", places, v);
}

/* ---- bars ----------------------------------------------------------------------------------- */

static void one_bar(struct buf *out, struct str unit, const struct svg_bar *b, double y,
                    double scale)
{
    double w = b->value * scale, mid = y + BAR_H / 2.0;
    buf_addf(out, "<g><title>");
    svg_text(out, b->name);
    buf_addz(out, ": ");
    view_number(out, b->value);
    buf_addc(out, ' ');
    svg_text(out, unit);
    buf_addz(out, " (");
    view_number(out, b->min);
    buf_addz(out, " to ");
    view_number(out, b->max);
    buf_addz(out, ")</title>");
    buf_addf(out, "<text class=\"name\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", NAME_W - 10,
             mid + 4.5);
    svg_text(out, b->name);
    buf_addf(out,
             "</text><rect class=\"c%d\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" "
             "rx=\"3\"/>",
             b->colour % 8, NAME_W, y, fmax(w, 1), BAR_H);
    for (size_t i = 0; i < b->n_dot && i < 64 && b->n_dot > 1; i++)
        buf_addf(out, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>",
                 NAME_W + b->dots[i] * scale, mid + (i % 3 - 1.0) * 5);
    if (b->max > b->min)
        buf_addf(out, "<path class=\"whisker\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv10M%.1f %.1fv10\"/>",
                 NAME_W + b->min * scale, mid, NAME_W + b->max * scale, NAME_W + b->min * scale,
                 mid - 5, NAME_W + b->max * scale, mid - 5);
    buf_addf(out, "<text class=\"value\" x=\"%.1f\" y=\"%.1f\">",
             NAME_W + fmax(b->max, b->value) * scale + 8, mid + 4.5);
    view_number(out, b->value);
    buf_addz(out, " <tspan class=\"unit\">");
    svg_text(out, unit);
    buf_addz(out, "</tspan></text></g>");
}

void svg_bars(struct buf *out, struct str unit, const struct svg_bar *bars, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, fmax(bars[i].max, bars[i].value));
    double scale = most > 0 ? BAR_W / most : 0;
    int height = (int)n * (BAR_H + BAR_GAP);
    buf_addf(out, "<svg class=\"bars\" viewBox=\"0 0 %d %d\" role=\"img\">", WIDTH, height);
    buf_addf(out, "<path class=\"axis\" d=\"M%d 0V%d\"/>", NAME_W, height - BAR_GAP / 2);
    for (size_t i = 0; i < n; i++)
        one_bar(out, unit, &bars[i], (double)i * (BAR_H + BAR_GAP), scale);
    buf_addz(out, "</svg>\n");
}

/* ---- lines ---------------------------------------------------------------------------------- */

struct frame {
    double x0, x1, y0, y1;
};

static double px(const struct frame *f, double x)
{
    return LEFT + (x - f->x0) / (f->x1 - f->x0) * (PLOT_W - LEFT - RIGHT);
}

static double py(const struct frame *f, double y)
{
    return PLOT_H - BOTTOM - (y - f->y0) / (f->y1 - f->y0) * (PLOT_H - TOP - BOTTOM);
}

static bool find_frame(const struct svg_axes *a, const struct svg_line *lines, size_t n,
                       struct frame *f)
{
    *f = (struct frame){INFINITY, -INFINITY, INFINITY, -INFINITY};
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < lines[k].n; i++) {
            double x = lines[k].x[i], y = lines[k].y[i];
            if (!isfinite(x) || !isfinite(y))
                continue;
            f->x0 = fmin(f->x0, x);
            f->x1 = fmax(f->x1, x);
            f->y0 = fmin(f->y0, lines[k].lo ? fmin(y, lines[k].lo[i]) : y);
            f->y1 = fmax(f->y1, lines[k].hi ? fmax(y, lines[k].hi[i]) : y);
        }
    if (!(f->x0 <= f->x1))
        return false;
    if (a->y_from_zero)
        f->y0 = fmin(f->y0, 0);
    if (f->x1 == f->x0)
        f->x1 = f->x0 + 1;
    if (f->y1 == f->y0)
        f->y1 = f->y0 + 1;
    double step = svg_step(f->y1 - f->y0, 5);
    f->y0 = floor(f->y0 / step) * step;
    f->y1 = ceil(f->y1 / step) * step;
    return true;
}

static void axes(struct buf *out, const struct svg_axes *a, const struct frame *f)
{
    double sy = svg_step(f->y1 - f->y0, 5), sx = svg_step(f->x1 - f->x0, 7);
    if (a->x_whole)
        sx = fmax(sx, 1);
    for (double y = f->y0; y <= f->y1 + sy / 2; y += sy) {
        buf_addf(out,
                 "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"tick\" x=\"%d\" "
                 "y=\"%.1f\" text-anchor=\"end\">",
                 LEFT, py(f, y), PLOT_W - RIGHT, LEFT - 7, py(f, y) + 4);
        tick_text(out, y, sy);
        buf_addz(out, "</text>");
    }
    for (double x = ceil(f->x0 / sx) * sx; x <= f->x1 + sx * 1e-6; x += sx) {
        buf_addf(out, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", px(f, x),
                 PLOT_H - BOTTOM + 17);
        tick_text(out, x, sx);
        buf_addz(out, "</text>");
    }
    buf_addf(out, "<path class=\"axis\" d=\"M%d %dH%d\"/>", LEFT, PLOT_H - BOTTOM, PLOT_W - RIGHT);
    buf_addf(out, "<text class=\"unit\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", PLOT_W - RIGHT,
             PLOT_H - 6);
    svg_text(out, a->x_unit);
    buf_addf(out, "</text><text class=\"unit\" x=\"%d\" y=\"%d\">", 2, 12);
    svg_text(out, a->y_unit);
    buf_addz(out, "</text>");
}

/* Whiskers stand a little beside each other where lines share an x. */
static void line_whiskers(struct buf *out, const struct svg_line *l, const struct frame *f)
{
    for (size_t i = 0; i < l->n && l->lo && l->hi; i++) {
        if (!isfinite(l->x[i]) || !(l->hi[i] > l->lo[i]))
            continue;
        double x = px(f, l->x[i]), top = py(f, l->hi[i]), low = py(f, l->lo[i]);
        buf_addf(out, "<path class=\"whisker l%d\" d=\"M%.1f %.1fV%.1fM%.1f %.1fh6M%.1f %.1fh6\"/>",
                 l->colour % 8, x, low, top, x - 3, low, x - 3, top);
    }
}

static void one_line(struct buf *out, const struct svg_line *l, const struct frame *f)
{
    bool pen = false;
    buf_addf(out, "<g><title>");
    svg_text(out, l->name);
    buf_addf(out, "</title><path class=\"line l%d\" d=\"", l->colour % 8);
    for (size_t i = 0; i < l->n; i++) {
        if (!isfinite(l->x[i]) || !isfinite(l->y[i]))
            continue;
        buf_addf(out, "%c%.1f %.1f", pen ? 'L' : 'M', px(f, l->x[i]), py(f, l->y[i]));
        pen = true;
    }
    buf_addz(out, "\"/>");
    line_whiskers(out, l, f);
    for (size_t i = 0; i < l->n && l->dots; i++)
        if (isfinite(l->x[i]) && isfinite(l->y[i]))
            buf_addf(out, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>",
                     l->colour % 8, px(f, l->x[i]), py(f, l->y[i]));
    buf_addz(out, "</g>");
}

void svg_lines(struct buf *out, const struct svg_axes *a, const struct svg_line *lines, size_t n)
{
    struct frame f;
    if (!find_frame(a, lines, n, &f))
        return;
    buf_addf(out, "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\"><title>", PLOT_W, PLOT_H);
    svg_text(out, a->label);
    buf_addz(out, "</title>");
    axes(out, a, &f);
    for (size_t k = 0; k < n; k++)
        one_line(out, &lines[k], &f);
    buf_addz(out, "</svg>\n");
}
