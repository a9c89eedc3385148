// The report as the page's data has it: OomReport.to_dict(), its buffers in columns.

/** Add what several sections need: the heap, the place of its peak, and the limit. */
export function readReport(data) {
  const { message, summary, device, breakdown } = data;
  const heap = summary?.heap_bytes ?? [];
  // A stored report may place the peak outside of the program.
  const peak = Math.max(0, Math.min(summary?.peak_position ?? 0, heap.length - 1));
  // The error's figure counts; a profile or the allocator has one where the error has none.
  const limit = message.limit_bytes || breakdown.limit || (device?.limit_bytes ?? null);
  const source = summary === null ? "listed in the error message" : "at the peak";
  return { ...data, heap, peak, limit, source };
}
