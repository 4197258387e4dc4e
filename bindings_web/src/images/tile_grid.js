// In how many tiles an image is cut; the twin of embedllm/images/tile_grid.py.

export const MOST_TILES = 256; // of an image: a folder may be anybody's, and each of them costs memory and time; InternVL has 12

/**
 * Rows and columns of tiles, whose proportions are those of the image as nearly as can be. Of equally near grids it is the
 * largest that the image fills by half.
 *
 * @param {{width: number, height: number}} image @param {number} tile pixels; the side of a tile
 * @param {readonly number[]} limits of tiles: at least, at most
 */
export function closestGrid({ width, height }, tile, [least, most]) {
  let [best, difference] = [[1, 1], Infinity];
  for (let count = least; count <= most; count++) {
    const isFilled = width * height > 0.5 * tile ** 2 * count;
    for (let columns = 1; columns <= count; columns++) {
      if (count % columns) continue;
      const found = Math.abs(width / height - columns / (count / columns));
      if (found < difference || (found === difference && isFilled)) [best, difference] = [[count / columns, columns], found];
    }
  }
  return best;
}
